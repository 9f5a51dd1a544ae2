"""In what a table's runs are not the paper's: keys of methods that its paper has otherwise, and what a scale makes
smaller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from clusterfl.config.methods import write_method
from clusterfl.config.tables import UNSET, Table
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS
from clusterfl.methods.presets import PAPER
from clusterfl.reproduce.spec import Cell, Experiment, Row
from clusterfl.reproduce.store import decisive

Item = tuple[str, str, str]  # a key, its value, and the other's


def differences(e: Experiment, row: Row, scale: str = "full") -> list[str]:
    """In what a row's method is not its paper's letter, as ``key = ours (paper: theirs)``; the method that it is
    around is compared with that method's paper.

    ``letter`` of the experiment is what its paper says there over the preset. What laptop scale makes smaller is not
    among them (:func:`reductions`).
    """
    cell = next((c for c in e.cells(scale, [0]) if c.row.name == row.name), None)
    if cell is None:
        return []
    try:
        have: Table = write_method(cell.config().method)
        smaller = {key for key, _, _ in _changes(replace(cell, scale="full"), cell)} if scale != "full" else set()
    except ConfigError:  # such a cell has no results either
        return []
    departures = [item for item in _departures(have, e.letter) if f"method.{item[0]}" not in smaller]
    return [f"{key} = {ours} (paper: {theirs})" for key, ours, theirs in departures]


def _said(name: str) -> Table:
    """What a method's paper says of its settings."""
    if name not in PAPER:
        return {}
    usual = write_method(METHODS[name]())
    return {**{key: usual.get(key, UNSET) for key in PAPER[name].same}, **PAPER[name].method}


def _departures(have: Table, over: Mapping[str, Table] | None = None, path: str = "") -> Iterator[Item]:
    name = have["name"]
    said = {**_said(name), **(over or {}).get(name, {})}
    for key, theirs in said.items():
        ours = have.get(key, UNSET)
        if isinstance(theirs, Mapping):
            ours, theirs = ours["name"], theirs["name"]
        if ours != (UNSET if theirs is None else theirs) and not _idle(key, have):
            yield path + key, _shown(ours), _shown(theirs)
    if isinstance(base := have.get("base"), Mapping):
        yield from _departures(dict(base), over, f"{path}base.")


def _idle(key: str, have: Table) -> bool:
    """Whether a key has no meaning beside the others."""
    return key == "start_rounds" and have.get("start") != "kmeans-local"


def reductions(e: Experiment, places: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What laptop scale changes of full scale in these rows and settings, as lines: what all have in common first,
    then what a setting, a row or a cell has beside that."""
    cells = {scale: {(c.row.name, c.setting.name): c for c in e.cells(scale, [0])} for scale in ("full", "laptop")}
    found = {at: _changes(cells["full"][at], cells["laptop"][at]) for at in dict.fromkeys(places)}
    if not found:
        return
    common = _common(found.values())
    if common:
        yield _line("", common)
    left = {at: _without(items, common) for at, items in found.items()}
    for side in (1, 0):
        groups = {at[side]: [items for other, items in left.items() if other[side] == at[side]] for at in left}
        for name, of_group in groups.items() if len(groups) > 1 else ():
            if own := _common(of_group):
                yield _line(name, own)
                left = {at: _without(items, own) if at[side] == name else items for at, items in left.items()}
    for (row, setting), items in left.items():
        if items:
            yield _line(f"{row}, {setting}", items)


def same_at_both_scales(e: Experiment) -> bool:
    """Whether laptop scale changes nothing: the two are one run."""
    cells = [list(e.cells(scale, [0])) for scale in ("full", "laptop")]
    try:
        return bool(e.rows) and not any(_changes(full, small) for full, small in zip(*cells, strict=True))
    except ConfigError:
        return False


def _changes(full: Cell, small: Cell) -> list[Item]:
    theirs, ours = (dict(_flat(decisive(c.config()))) for c in (full, small))
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    return [(key, _shown(ours.get(key)), _shown(theirs.get(key))) for key in keys]


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, value


def _common(found: Iterable[Sequence[Item]]) -> list[Item]:
    return list(reduce(lambda a, b: [item for item in a if item in b], found))


def _without(items: Sequence[Item], others: Sequence[Item]) -> list[Item]:
    return [item for item in items if item not in others]


def _line(name: str, items: Sequence[Item]) -> str:
    return (f"{name}: " if name else "") + ", ".join(f"{key} = {ours} ({theirs})" for key, ours, theirs in items)


def _shown(value: Any) -> str:
    return "unset" if value is None or value == UNSET else str(value).lower() if isinstance(value, bool) else str(value)
