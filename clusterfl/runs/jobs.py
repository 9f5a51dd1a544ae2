"""Many runs, each in a folder of its own, several at a time: one process and one thread for each of them."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterfl.callback import Callback
from clusterfl.config import Config
from clusterfl.engines.pool import little_room, uninterrupted
from clusterfl.errors import ClusterflError
from clusterfl.runs.compare import finished

log = logging.getLogger(__name__)


class Cell(NamedTuple):
    """A run that is wanted, and where it lives."""

    config: Config
    folder: Path


class Ended(NamedTuple):
    """A cell and its summary, or why there is none."""

    cell: Cell
    summary: dict[str, Any] | None
    error: str = ""


Watch = Callable[[Cell, int], Sequence[Callback]]  # a cell that starts, as the how-manieth of all


def run_cells(cells: Sequence[Cell], jobs: int = 1, watch: Watch = lambda cell, number: ()) -> Iterator[Ended]:
    """Each cell as it ends. Those that are finished in their folders are not run again, those that were stopped go
    on; one that cannot run says why and the others go on. ``watch`` is asked for callbacks where ``jobs`` is 1."""
    todo = []
    for cell in cells:
        summary = finished(cell.folder, cell.config)
        if summary is None:
            todo.append(cell)
        else:
            yield Ended(cell, summary)
    others = multiprocessing.active_children()
    processes = spawned(min(jobs, len(todo)), _one_thread) if jobs > 1 and len(todo) > 1 else None
    if processes is None:
        for number, cell in enumerate(todo, start=len(cells) - len(todo) + 1):
            yield Ended(cell, *_carry_out(cell.config.table(), cell.folder, watch(cell, number)))
        return
    with processes as pool:
        with uninterrupted():  # a run that is cut off goes on at its last checkpoint
            asked = {pool.submit(_carry_out, alone(cell.config).table(), cell.folder): cell for cell in todo}
        try:
            for future in as_completed(asked):
                yield Ended(asked[future], *future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


def spawned(jobs: int, initializer: Callable[[], None] | None = None) -> ProcessPoolExecutor | None:
    """So many processes; None where the machine has nothing for their locks, and that is said."""
    try:
        return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=initializer)
    except OSError as e:
        log.warning("%s (%s): no %d runs at a time, one goes after the other", e.strerror or e, little_room(), jobs)
        return None


def alone(config: Config) -> Config:
    """The same run in one process, where other runs have the other cores."""
    if config.engine.name in ("auto", "pool"):
        return config.model_copy(update={"engine": replace(config.engine, name="stacked", workers=None)})
    return config


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _carry_out(
    table: Mapping[str, Any], folder: Path, callbacks: Sequence[Callback] = ()
) -> tuple[dict[str, Any] | None, str]:
    from clusterfl.runs.run import run

    config = Config.parse(table)
    try:
        run(config, out=folder, resume=True, callbacks=callbacks)
    except ClusterflError as e:
        return None, str(e)
    return finished(folder, config), ""
