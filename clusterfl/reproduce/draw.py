"""A figure of a paper, drawn from the results that it shows."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.config.overrides import merged
from clusterfl.config.tables import Table
from clusterfl.errors import ClusterflError
from clusterfl.reproduce.spec import COUNTED, Experiment, select
from clusterfl.reproduce.stamp import read_stamp, write_stamp
from clusterfl.reproduce.store import CURVES, Results, decisive


def shown(e: Experiment, every: Sequence[Experiment], held: Results | None = None) -> list[Table]:
    """The results that a figure shows: of its own cells, or of the experiment that it uses; at the scale at which it
    shows most of these, full scale if both show as many."""
    source = select(every, e.uses)[0] if e.uses else e
    held = held or Results(source.folder)
    best: list[Table] = []
    for scale in COUNTED:
        found = [
            {**result, "row": cell.row.name, "setting": cell.setting.name, "scale": scale}
            for cell in source.cells(scale, held.seeds)
            if (not e.shows or cell.setting.name in e.shows)
            and (not e.lines or cell.row.name in e.lines)
            and (result := held.of(cell)) is not None
            and (not e.needs or result.get(e.needs))
        ]
        if len(_places(found)) > len(_places(best)):
            best = found
    return best


def _places(results: Sequence[Table]) -> set[tuple[str, str]]:
    return {(r["row"], r["setting"]) for r in results}


def draw(e: Experiment, every: Sequence[Experiment], path: Path, data_root: Path | None = None) -> Path:
    """Writes the figure's PNG; ClusterflError, in one sentence, where what it shows has not been run."""
    if e.report is None:
        raise ClusterflError(f"{e.name} should have a report: nothing draws it yet")
    results = shown(e, every)
    if not results and (e.uses or e.rows):
        raise ClusterflError(f"{e.name} shows what {e.uses or e.name} runs, of which there is no result yet")
    changes: Table = {"data": {"root": str(data_root)}} if data_root else {}
    module, _, name = e.report.partition(":")
    function: Any = getattr(importlib.import_module(module), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    function(results, Config.parse(merged(_table(e), changes)), path)
    write_stamp(path, told(e, results))
    return path


def told(e: Experiment, results: Sequence[Table]) -> str:
    """A digest of what a figure shows: by what it is drawn, of which results, in which config."""
    kept = ("row", "setting", "scale", "seed", "metrics", *CURVES)
    shows = [{key: r[key] for key in kept if r.get(key)} for r in results]
    whole = [e.report, decisive(Config.parse(_table(e))), shows]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def stale(e: Experiment, every: Sequence[Experiment], path: Path, held: Results | None = None) -> bool:
    """Whether a picture shows something else than would be drawn today."""
    return read_stamp(path) != told(e, shown(e, every, held))


def _table(e: Experiment) -> Table:
    """A drawing without cells has its config in the base."""
    first = next(iter(e.cells("full", [0])), None)
    return e.base if first is None else first.config().table()
