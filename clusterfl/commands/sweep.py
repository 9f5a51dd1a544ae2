"""``clusterfl sweep``: one scenario under every combination of some settings."""

from __future__ import annotations

import csv
import io
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Json,
    Out,
    Quiet,
    Report,
    Set,
    Verbose,
    check_report,
    draw,
    resumable,
    say_json,
    say_report,
    set_logging,
)
from clusterfl.commands.compare import parse_seeds


def register(app: typer.Typer) -> None:
    app.command()(sweep)


def sweep(
    config: ConfigFile = None,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid", metavar="KEY=A,B", help="A key and its values, as local.lr=0.01,0.1 or local.epochs=1-3."
        ),
    ] = [],  # noqa: B006 (typer reads it)
    seeds: Annotated[str, typer.Option("--seeds", metavar="0-2", help="Seeds, as 0-2 or 0,3,5.")] = "0",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in one process.")] = 1,
    set_: Set = [],  # noqa: B006
    out: Out = None,
    report: Report = False,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run every combination of some settings; one table, the best first.

    Runs that are finished in the folder are not run again, and one that was stopped goes on: stop at any time
    and start again. Writes sweep.json, sweep.parquet (one row per combination) and table.csv.

    \b
    Examples:
      clusterfl sweep --grid local.lr=0.01,0.1 --grid local.epochs=1-3 --seeds 0-2 --jobs 2
      clusterfl sweep --set method.name=ifca --grid method.k=2-6
      clusterfl sweep scenario.toml --grid method.name=ifca,fesem --out runs/sweep
    """
    set_logging(verbose, quiet)
    from rich.console import Console

    from clusterfl.config import Config
    from clusterfl.errors import ConfigError
    from clusterfl.runs.files import write_whole
    from clusterfl.runs.folder import config_of, exclusive
    from clusterfl.runs.progress import Progress, display
    from clusterfl.runs.sweep import parse_axis, points
    from clusterfl.runs.sweep import sweep as carry_out

    chosen = points([parse_axis(text) for text in grid])
    numbers = parse_seeds(seeds)
    folder = out or Path("runs") / f"sweep-{config.stem if config else 'demo'}"

    def load(settings: Any, seed: int) -> Config:
        return Config.load(config, [*set_, *settings], seed=seed, data_root=data_root)

    def told(ended: Any, done: int, total: int) -> None:
        if not quiet:
            said = ended.error if ended.summary is None else mean_of(ended.summary)
            typer.echo(f"run {done} of {total}: {ended.cell.folder.name}: {said}", err=True)

    if config_of(folder) is not None:
        raise ConfigError(f"out={folder} holds a run or a comparison and should be a new folder")
    if report:
        check_report()
    seen = Console(stderr=True).is_terminal and jobs == 1  # elsewhere a line per run is enough
    with resumable(), exclusive(folder), display(quiet or not seen) as shown:
        result = carry_out(
            load,
            chosen,
            numbers,
            folder,
            jobs=jobs,
            told=told,
            watch=lambda label, number, total: [Progress(shown, f"run {number} of {total}: {label}")],
        )
        write_whole(folder / "sweep.json", (jsonlib.dumps(result, indent=2) + "\n").encode())
        write_whole(folder / "table.csv", as_csv(result).encode())
        write_parquet(folder / "sweep.parquet", result)
    drawn = draw(folder) if report and result["points"] else None
    if json:
        say_json(result)
    else:
        for line in as_text(result):
            typer.echo(line)
        typer.echo(f"\nwritten to {folder}")
        say_report(drawn, folder)
    if len(result["failed"]) + len(result["learnt_nothing"]) == len(chosen) * len(numbers):
        raise typer.Exit(1)


def mean_of(summary: dict[str, Any]) -> str:
    from clusterfl.scores import label, told

    metric = told(summary)
    mean = summary[metric.key("accuracy_mean")]
    return f"{label(metric.name)} {'-' if mean is None else format(mean, '.3f')}"


def flat(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One plain row per combination."""
    return [{**p["settings"], **{k: v for k, v in p.items() if k != "settings"}} for p in result["points"]]


def as_csv(result: dict[str, Any]) -> str:
    rows = flat(result)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["settings"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_parquet(path: Path, result: dict[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(flat(result)), path)


def as_text(result: dict[str, Any]) -> list[str]:
    from clusterfl.runs.compare_tables import aligned
    from clusterfl.scores import label, told

    def shown(value: Any, digits: int = 2, scale: float = 1.0) -> str:
        return "-" if value is None else f"{value * scale:.{digits}f}"

    metric = told(result)
    scale, digits = (100.0, 2) if metric.percent else (1.0, 3)

    def score(p: dict[str, Any], name: str) -> str:
        return shown(p[metric.key(name)], digits, scale)

    head = ["settings", label(metric.name), "worst 5", "ARI", "clusters", "MB up", "seconds"]
    body = [
        [
            ", ".join(f"{k}={v}" for k, v in p["settings"].items()) or "as it is",
            f"{score(p, 'accuracy_mean')} ± {score(p, 'accuracy_seeds_std')}",
            score(p, "accuracy_bottom5"),
            shown(p["ari"]),
            shown(p["clusters_found"], 1),
            shown(p["bytes_up"], 2, 1e-6),
            shown(p["seconds"], 1),
        ]
        for p in result["points"]
    ]
    failed = [f"not run: {f['settings']}, seed {f['seed']}: {f['error']}" for f in result["failed"]]
    lost = [f"no round had a sound reply: {f['settings']}, seed {f['seed']}" for f in result["learnt_nothing"]]
    return [*aligned([head, *body]), *failed, *lost]
