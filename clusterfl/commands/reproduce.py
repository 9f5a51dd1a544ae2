"""``clusterfl reproduce``: the papers' tables, cell by cell, ours beside theirs."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clusterfl.commands.common import DataRoot, Json, Quiet, Verbose, resumable, say_json, set_logging
from clusterfl.commands.compare import parse_seeds
from clusterfl.errors import ClusterflError, ConfigError

if TYPE_CHECKING:
    from clusterfl.config import Config
    from clusterfl.reproduce.compare import Comparison
    from clusterfl.reproduce.spec import Cell, Experiment

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="PAPER.TABLE", help="Or PAPER: all of its tables.")] = None,
    scale: Annotated[
        Literal["full", "laptop", "smoke"], typer.Option("--scale", help="The paper's sizes, smaller, or tiny.")
    ] = "full",
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="0-2", help="Seeds, as 0-2 or 0,3,5 (default 0-2; smoke: 0).")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="METHOD", help="A row by its name (FCCA), or all of a method (fcca)."),
    ] = None,
    setting: Annotated[str | None, typer.Option("--setting", metavar="NAME", help="One column.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Experiments (default: the checkout's experiments/).")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is and what is done; run nothing.")] = False,
    page_only: Annotated[bool, typer.Option("--page-only", help="Write the page from results; run nothing.")] = False,
    engine: Annotated[str | None, typer.Option("--engine", help="Over the config's engine.name.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Reproduce a table of a paper: run what is missing, print ours beside the paper's.

    A cell (one method, one setting, one seed) that is finished is not run again while its config is the same;
    stop at any time and start again. A figure is drawn from the results there are, below docs/figures;
    docs/reproduction.md is written anew at the end.

    \b
    Examples:
      clusterfl reproduce --list
      clusterfl reproduce md-icfl.table4 --seeds 0-2
      clusterfl reproduce feddsmic.table2-mnist --only FedDSMIC --setting alpha=0.5
      clusterfl reproduce fcca --scale smoke
      clusterfl reproduce feddsmic.fig4
    """
    set_logging(verbose, quiet)
    from clusterfl.reproduce.compare import compare
    from clusterfl.reproduce.spec import load_all, select

    where = experiments_folder(folder)
    every = load_all(where)
    chosen = select(every, what) if what else every
    if page_only:
        typer.echo(f"written to {write_page(where, every)}")
        return
    if listed or what is None:
        listing(chosen, scale, json)
        return
    failed = 0
    if any(e.rows for e in chosen) or not any(e.report for e in chosen):
        cells = wanted(chosen, scale, parse_seeds(seeds or ("0" if scale == "smoke" else "0-2")), only, setting)
        try:
            with resumable():
                failed = run_missing(cells, data_root, engine, quiet, verbose)
        finally:  # also what an interrupted study has so far
            if scale != "smoke":
                write_page(where, every)
    if scale != "smoke":
        failed += draw_figures([e for e in chosen if e.report], every, where, data_root)
        write_page(where, every)
    found = [compare(e, scale) for e in chosen if e.rows]
    if json:
        say_json([c.json() for c in found])
    else:
        for c in found:
            show(c)
    if failed:
        raise typer.Exit(1)


def draw_figures(
    figures: Sequence[Experiment], every: Sequence[Experiment], folder: Path, data_root: Path | None
) -> int:
    """Writes the pictures of these figures; how many could not be drawn for want of results."""
    from clusterfl.reproduce.draw import draw
    from clusterfl.reproduce.page import page_path, picture_name

    failed = 0
    for e in figures:
        try:
            path = draw(e, every, page_path(folder).parent / "figures" / picture_name(e), data_root)
            typer.echo(f"drawn: {path}", err=True)
        except ClusterflError as error:
            failed += len(figures) == 1  # of a whole paper, what can be drawn is
            log.warning("%s is not drawn: %s", e.name, error)
    return failed


def experiments_folder(given: Path | None) -> Path:
    """The folder asked for, ./experiments, or that of the checkout this code is in."""
    import clusterfl

    options = [given] if given else [Path("experiments"), Path(clusterfl.__file__).parent.parent / "experiments"]
    for path in options:
        if path.is_dir() and any(path.glob("*/*.toml")):
            return path
    raise ConfigError(
        f"--dir {options[0]} should hold PAPER/TABLE.toml files; the installed package has none: run this in a "
        "checkout of the project, or give its experiments folder"
    )


def wanted(
    experiments: Sequence[Experiment], scale: str, seeds: Sequence[int], only: str | None, setting: str | None
) -> list[Cell]:
    from clusterfl.reproduce.spec import slug

    cells = [cell for e in experiments for cell in e.cells(scale, seeds)]
    if not cells:
        names = ", ".join(e.uses for e in experiments if e.uses)
        raise ConfigError(
            f"{experiments[0].name} should have something to run, but is a drawing"
            + (f" of what {names} runs" if names else "")
        )
    for name, given, words in (
        ("--only", only, lambda cell: (slug(cell.row.name), slug(cell.row.method["name"]))),
        ("--setting", setting, lambda cell: (slug(cell.setting.name),)),
    ):
        if given is not None:
            known = list(dict.fromkeys(word for cell in cells for word in words(cell)))
            exact = [cell for cell in cells if name == "--only" and cell.row.name == given]
            cells = exact or [cell for cell in cells if slug(given) in words(cell)]
            if not cells:
                raise ConfigError(f"{name} {given!r} should be one of {', '.join(known)}")
    return cells


def run_missing(cells: Sequence[Cell], data_root: Path | None, engine: str | None, quiet: bool, verbose: int) -> int:
    """Runs the cells that are not finished; one that cannot run does not stop the others. How many could not."""
    from rich.console import Console

    from clusterfl.reproduce.store import Results, result_of, write_result
    from clusterfl.runs.folder import can_resume
    from clusterfl.runs.progress import Progress, display
    from clusterfl.runs.run import carry_out

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    done = {cell.experiment.folder: Results(cell.experiment.folder) for cell in cells}
    todo = [cell for cell in cells if done[cell.experiment.folder].of(cell) is None]
    say(f"{len(cells)} cells: {len(cells) - len(todo)} finished, {len(todo)} to run")
    failed, population, drawn_by = 0, None, None
    live = Console(stderr=True).is_terminal  # elsewhere a line per cell is enough, unless more is asked for
    with display(quiet or not (live or verbose)) as shown:
        for number, cell in enumerate(todo, start=1):
            place = f"[{number}/{len(todo)}] {cell.label}"
            if Results(cell.experiment.folder).of(cell) is not None:  # since, as part of another table
                say(f"{place}: finished")
                continue
            try:
                config = carried_out(cell.config(), data_root, engine)
                if population is None or drawn_by != (config.data, config.seed):  # rows share their clients
                    population, drawn_by = config.population(), (config.data, config.seed)
                scratch = Path("runs") / "reproduce" / f"{cell.experiment.paper}-{cell.path.stem}"
                resume = can_resume(scratch, config)  # a cell that was stopped goes on at its last round
                callbacks = [Progress(shown, place)]
                ended = carry_out(config, population, out=scratch, resume=resume, force=True, callbacks=callbacks)
                result = result_of(cell, ended.config, population, ended.outcome)
                write_result(cell, result)
                shutil.rmtree(scratch)
            except ClusterflError as e:
                failed += 1
                log.error("%s cannot run: %s", place, e)
            except Exception:  # a night's study goes on
                failed += 1
                log.exception("%s failed", place)
            else:
                say(f"{place}: {told(cell, result)}")
    return failed


def carried_out(config: Config, data_root: Path | None, engine: str | None) -> Config:
    """The same run, from another folder or by another engine."""
    from clusterfl.config import Config
    from clusterfl.config.overrides import merged

    changes = {"data": {"root": str(data_root)} if data_root else {}, "engine": {"name": engine} if engine else {}}
    return Config.parse(merged(config.table(), changes))


def told(cell: Cell, result: dict[str, Any]) -> str:
    """A finished cell in half a line."""
    from clusterfl.reproduce.spec import METRICS

    known = [(METRICS[m], result["metrics"].get(m)) for m in cell.experiment.metrics]
    figures = [f"{metric.label} {metric.factor * value:.2f}" for metric, value in known if value is not None]
    return ", ".join([*figures, f"{result['seconds']:.0f} s"])


def show(found: Comparison) -> None:
    """The table, ours / the paper's."""
    from rich.console import Console
    from rich.table import Table

    head, *lines = found.grid()
    table = Table(title=f"{found.experiment.name}: {found.experiment.title} ({found.scale})", title_justify="left")
    for j, name in enumerate(head):
        table.add_column(name, justify="left" if j == 0 else "right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    typer.echo(found.count)


def listing(experiments: Sequence[Experiment], scale: str, json: bool) -> None:
    from clusterfl.reproduce.compare import compare, in_words

    entries: list[dict[str, Any]] = []
    for e in experiments:
        found = compare(e, scale)
        entries.append(
            {
                "experiment": e.name,
                "title": e.title,
                "kind": e.kind,
                "uses": e.uses,
                "report": e.report,
                "cells": sum(1 for _ in e.cells(scale, [0])),
                "scale": scale,
                "finished": len(found.results),
                "verdicts": dict(found.verdicts),
                "readings": dict(found.readings),
            }
        )
    if json:
        say_json(entries)
        return
    width = max(len(e.name) for e in experiments)
    for entry in entries:
        cells = f"{entry['cells']:3d} cells a seed, {entry['finished']} finished" if entry["cells"] else "a drawing"
        count = f", figures {in_words(Counter(entry['verdicts']))}" if entry["verdicts"] else ""
        typer.echo(f"{entry['experiment']:{width}}  {entry['title']}: {cells}{count}")


def write_page(folder: Path, experiments: Sequence[Experiment]) -> Path:
    from clusterfl.reproduce.page import page, page_path
    from clusterfl.runs.files import write_whole

    path = page_path(folder)
    write_whole(path, page(experiments, path.parent / "figures").encode())
    return path
