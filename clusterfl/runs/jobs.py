"""Many runs, each in a folder of its own, several at a time: one process and one thread for each of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterfl.config import Config
from clusterfl.errors import ClusterflError
from clusterfl.runs.compare import finished


class Cell(NamedTuple):
    """A run that is wanted, and where it lives."""

    config: Config
    folder: Path


class Ended(NamedTuple):
    """A cell and its summary, or why there is none."""

    cell: Cell
    summary: dict[str, Any] | None
    error: str = ""


def run_cells(cells: Sequence[Cell], jobs: int = 1) -> Iterator[Ended]:
    """Each cell as it ends. Those that are finished in their folders are not run again, those that were stopped go
    on; one that cannot run says why and the others go on."""
    todo = []
    for cell in cells:
        summary = finished(cell.folder, cell.config)
        if summary is None:
            todo.append(cell)
        else:
            yield Ended(cell, summary)
    if jobs <= 1 or len(todo) <= 1:
        for cell in todo:
            yield Ended(cell, *_carry_out(cell.config.table(), cell.folder))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=context, initializer=_one_thread) as pool:
        asked = {pool.submit(_carry_out, alone(cell.config).table(), cell.folder): cell for cell in todo}
        try:
            for future in as_completed(asked):
                yield Ended(asked[future], *future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def alone(config: Config) -> Config:
    """The same run in one process, where other runs have the other cores."""
    if config.engine.name in ("auto", "pool"):
        return config.model_copy(update={"engine": replace(config.engine, name="stacked", workers=None)})
    return config


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _carry_out(table: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any] | None, str]:
    from clusterfl.runs.run import run

    config = Config.parse(table)
    try:
        run(config, out=folder, resume=True)
    except ClusterflError as e:
        return None, str(e)
    return finished(folder, config), ""
