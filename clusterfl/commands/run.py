"""``clusterfl run``: one method on one scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
    Report,
    Set,
    Verbose,
    check_report,
    default_out,
    draw,
    picture,
    privacy_lines,
    say_json,
    say_report,
    set_logging,
)

if TYPE_CHECKING:
    from clusterfl.callback import Callback
    from clusterfl.config import Config
    from clusterfl.report.live import LivePage


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    config: ConfigFile = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed (over the config's).")] = None,
    out: Out = None,
    force: Force = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    report: Report = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the report on this machine while the run goes on.")
    ] = False,
    track: Annotated[
        list[str],
        typer.Option("--track", metavar="NAME", help="Also to csv, tensorboard, mlflow or wandb, in the folder."),
    ] = [],  # noqa: B006 (typer reads it)
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
      clusterfl run --live --track tensorboard
    """
    set_logging(verbose, quiet)
    from clusterfl.config import Config

    chosen = Config.load(config, set_, seed=seed, data_root=data_root)
    folder = out or default_out(chosen)
    show_run(chosen, folder, resume=resume, force=force, json=json, quiet=quiet, report=report, live=live, track=track)


def show_run(
    config: Config,
    folder: Path,
    *,
    resume: bool,
    force: bool,
    json: bool,
    quiet: bool,
    report: bool = False,
    live: bool = False,
    track: Sequence[str] = (),
) -> None:
    """Carries a run out in its folder and says what it found."""
    from clusterfl.runs.folder import can_resume, summary_of
    from clusterfl.runs.progress import Progress, display
    from clusterfl.runs.run import run as carry_out

    try:
        with display(quiet) as shown, contextlib.ExitStack() as open_pages:
            callbacks: list[Callback] = [Progress(shown, config.method.name)]
            if report or live:
                check_report()
            callbacks += trackers(track, folder)
            if live:
                page = live_page(folder)
                open_pages.callback(page.close)
                callbacks.append(page)
            carry_out(config, out=folder, resume=resume, force=force, callbacks=callbacks)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        if can_resume(folder, config):
            typer.echo(f"go on with: clusterfl resume {folder}", err=True)
        raise typer.Exit(130) from None
    summary = summary_of(folder)
    assert summary is not None, "a run that has ended has a summary"
    drawn = draw(folder) if report or live else None
    if json:
        say_json(summary)
        check_learnt(summary)
        return
    truth = {name: client["true_cluster"] for name, client in summary["per_client"].items()}
    for line in [*in_words(summary), *picture(summary["assignments"], truth)]:
        typer.echo(line)
    typer.echo(f"written to {folder}")
    say_report(drawn, folder)
    check_learnt(summary)


def check_learnt(summary: dict[str, Any]) -> None:
    """Exit code 1 where no round had a sound reply: the results are whole, but nothing was learnt."""
    from clusterfl.runs.compare import learnt_nothing

    if learnt_nothing(summary):
        typer.echo(
            f"error: in none of {summary['rounds']} rounds came a sound reply, so the models are those of the start; "
            "see the log for why replies were rejected (a smaller local.lr often helps)",
            err=True,
        )
        raise typer.Exit(1)


def trackers(names: Sequence[str], folder: Path) -> list[Callback]:
    if not names:
        return []
    from clusterfl.report.trackers import tracker

    return [tracker(name, folder) for name in dict.fromkeys(names)]


def live_page(folder: Path) -> LivePage:
    from clusterfl.report.live import LivePage

    return LivePage(folder, announce=lambda address: typer.echo(f"live at {address}", err=True))


def unsure(either: dict[str, list[int]], shown: int = 10) -> list[str]:
    """Who may be in several clusters, so that nobody takes a guess for knowledge."""
    if not either:
        return []
    some = ", ".join(f"{name} ({' or '.join(map(str, where))})" for name, where in list(either.items())[:shown])
    return [f"may be in several clusters: {some}{f', … ({len(either)})' if len(either) > shown else ''}"]


def in_words(summary: dict[str, Any]) -> list[str]:
    """The summary in a few lines."""
    from clusterfl.runs.progress import size
    from clusterfl.scores import label, told

    def number(name: str, digits: int = 3) -> str:
        value = summary[name]
        return "-" if value is None else f"{value:.{digits}f}"

    lost = summary["rounds_lost"]
    stood = [f"in {lost} of {summary['rounds']} rounds no sound reply came: the models stayed as they were"]
    metric = told(summary)
    mean, std, worst, unseen, intra, inter = (
        number(metric.key(f"{name}"))
        for name in (
            "accuracy_mean",
            "accuracy_std",
            "accuracy_bottom5",
            "unseen_accuracy",
            "intra_accuracy",
            "inter_accuracy",
        )
    )
    seen = f", unseen clients {unseen}" if summary["unseen"] else ""
    how = f"ARI {number('ari', 2)}, NMI {number('nmi', 2)}"
    if summary["true_clusters"] is None:
        how = f"intra {intra}, inter {inter}"
        how += "" if summary["margin"] is None else f", margin {number('margin', 2)}"
    return [
        f"{summary['method']} on {summary['data']}, seed {summary['seed']}, {summary['rounds']} rounds, "
        f"{summary['clients']} clients",
        f"{label(metric.name)} {mean} (between clients ± {std}, five worst {worst}){seen}",
        f"{how}, clusters {summary['clusters_found']} of {summary['k']}, "
        f"up {size(summary['bytes_up'])}, down {size(summary['bytes_down'])}, {summary['seconds']:.1f} s",
        *(stood if lost else []),
        *unsure(summary.get("either", {})),
        *privacy_lines(summary["privacy"]),
        *(f"note: {note}" for note in summary["notes"]),
    ]
