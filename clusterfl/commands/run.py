"""``clusterfl run``: one method on one scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Force,
    Json,
    Out,
    Quiet,
    Set,
    Verbose,
    check_out,
    default_out,
    picture,
    say_json,
    set_logging,
    simulate_into,
)

if TYPE_CHECKING:
    from clusterfl.config import Built


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    config: ConfigFile = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed (over the config's).")] = None,
    out: Out = None,
    force: Force = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run one method and write its results into a folder.

    \b
    Examples:
      clusterfl run
      clusterfl run scenario.toml --seed 1 --out runs/mine
      clusterfl run --set method.name=fedavg --set local.lr=0.05 --json
    """
    set_logging(verbose, quiet)
    from clusterfl.config import Config

    chosen = Config.load(config, set_, seed=seed, data_root=data_root)
    built = chosen.build()
    folder = out or default_out(built.config)
    check_out(folder, built.config.toml(), force)
    carry_out(built, folder, resume=resume, json=json, quiet=quiet)


def carry_out(built: Built, folder: Path, *, resume: bool, json: bool, quiet: bool) -> None:
    """The run in its folder, which nobody else may use meanwhile; then what it found."""
    from clusterfl.checkpoint import exclusive
    from clusterfl.progress import display
    from clusterfl.results import write_run

    population = built.simulation.population
    label = built.config.method.name
    with exclusive(folder), display(quiet) as shown:
        outcome = simulate_into(folder, built, shown, label, resume=resume)
        summary = write_run(folder, built.config, population, outcome)
    if json:
        say_json(summary)
        return
    for line in report(summary):
        typer.echo(line)
    for line in picture(summary, population):
        typer.echo(line)
    typer.echo(f"written to {folder}")


def report(summary: dict[str, Any]) -> list[str]:
    """The summary in a few lines."""
    from clusterfl.progress import size

    def number(name: str, digits: int = 3) -> str:
        value = summary[name]
        return "-" if value is None else f"{value:.{digits}f}"

    seen = f", unseen clients {number('unseen_accuracy')}" if summary["unseen"] else ""
    return [
        f"{summary['method']} on {summary['data']}, seed {summary['seed']}, {summary['rounds']} rounds, "
        f"{summary['clients']} clients",
        f"accuracy {number('accuracy_mean')} (between clients ± {number('accuracy_std')}, "
        f"five worst {number('accuracy_bottom5')}){seen}",
        f"ARI {number('ari', 2)}, NMI {number('nmi', 2)}, clusters {summary['clusters_found']} of {summary['k']}, "
        f"up {size(summary['bytes_up'])}, down {size(summary['bytes_down'])}, {summary['seconds']:.1f} s",
    ]
