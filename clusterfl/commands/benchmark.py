"""``clusterfl benchmark``: all methods on a fixed grid of worlds, and the leaderboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import DataRoot, Quiet, Verbose, set_logging
from clusterfl.commands.compare import parse_seeds
from clusterfl.errors import ConfigError

SAVE_EVERY = 20  # rows between two writes of the results


def register(app: typer.Typer) -> None:
    app.command()(benchmark)


def benchmark(
    datasets: Annotated[
        str,
        typer.Option(
            "--datasets",
            help="Comma-separated, of digits, mnist, fashion_mnist (open), emnist_letters, svhn, "
            "cifar10, multi_source, femnist (held out).",
        ),
    ] = "digits",
    only: Annotated[
        str, typer.Option("--only", metavar="METHOD", help="Methods, comma-separated; all without it.")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", metavar="0-2", help="Seeds, as 0-2 or 0,3,5.")] = "0-2",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, one process each.")] = 1,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where results live (default: the checkout's).")
    ] = Path("experiments/benchmark"),
    page_file: Annotated[Path, typer.Option("--page", metavar="FILE", help="The page.")] = Path("docs/leaderboard.md"),
    again: Annotated[
        bool, typer.Option("--again", help="Also run anew what is there; a row is replaced once its run is done.")
    ] = False,
    page_only: Annotated[bool, typer.Option("--page-only", help="Write the page from results; run nothing.")] = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run methods on the fixed grid v1 and rewrite the leaderboard.

    A row (method, world, seed) that is there already is not run again, unless it failed; stop at any time and start
    again. An author adds one method with --only NAME, and measures it anew with --again after a change to it: a row
    whose new run fails stays as it was.

    \b
    Examples:
      clusterfl benchmark --datasets digits --jobs 2
      clusterfl benchmark --only kin,ifca,fedavg --datasets mnist,fashion_mnist --seeds 0-2
      clusterfl benchmark --only kin --again
      clusterfl benchmark --page-only
    """
    set_logging(verbose, quiet=True)
    from clusterfl.bench import grid, leaderboard
    from clusterfl.config.errors import choice
    from clusterfl.methods import METHODS
    from clusterfl.runs.files import write_whole
    from clusterfl.runs.folder import exclusive

    path = folder / f"{grid.VERSION}.parquet"
    known = [*METHODS, grid.ORACLE]
    asked = [
        choice("--only", name.strip(), known, "a known method") for name in only.split(",") if name.strip()
    ] or known
    names = [d.strip() for d in datasets.split(",") if d.strip()]
    for name in names:
        choice("--datasets", name, (*grid.OPEN, *grid.HELD_OUT, "multi_source", "femnist"), "a dataset of the grid")
    if not page_only:
        with exclusive(folder):
            held = {leaderboard.key_of_row(row): row for row in leaderboard.read(path)}
            there = {key for key, row in held.items() if not row["error"]}  # what failed is tried anew
            chosen = grid.entries(grid.worlds(names), asked, parse_seeds(seeds))
            todo = [entry for entry in chosen if again or leaderboard.key_of(entry) not in there]
            try:
                for done, row in enumerate(carried_out(todo, jobs, None if data_root is None else str(data_root)), 1):
                    key = leaderboard.key_of_row(row)
                    stays = bool(row["error"]) and key in there
                    if not stays:
                        held[key] = row
                    if not quiet:
                        kept = "; the row that is there stays" if stays else ""
                        typer.echo(f"{done} of {len(todo)}: {line(row)}{kept}", err=True)
                    if done % SAVE_EVERY == 0:
                        leaderboard.write(path, list(held.values()))
            finally:  # also of a run that is interrupted
                if todo and held:
                    leaderboard.write(path, list(held.values()))
    rows = leaderboard.read(path)
    if not rows:
        raise ConfigError(f"{path} should hold results; run the benchmark first")
    write_whole(page_file, leaderboard.page(rows).encode())
    typer.echo(f"{len(rows)} rows in {path}, page written to {page_file}")


def line(row: dict[str, Any]) -> str:
    where = f"{row['method']} on {row['dataset']}, {row['scenario']}, {row['skew']}, seed {row['seed']}"
    if row["error"]:
        return f"{where}: {row['error']}"
    return f"{where}: {100 * row['accuracy']:.1f} %, {row['seconds']:.1f} s"


def carried_out(todo: Sequence[Any], jobs: int, data_root: str | None) -> Iterator[dict[str, Any]]:
    from clusterfl.bench.grid import measure
    from clusterfl.runs.jobs import spawned

    processes = spawned(jobs) if jobs > 1 and len(todo) > 1 else None
    if processes is None:
        for entry in todo:
            yield measure(entry, data_root)
        return
    with processes as pool:
        asked = [pool.submit(measure, entry, data_root) for entry in todo]
        try:
            for future in as_completed(asked):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
