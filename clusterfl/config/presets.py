"""A preset in a config: ``method.preset = "paper"``, written out below the keys that are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfl.config.errors import choice, dotted
from clusterfl.config.tables import UNSET, Table, as_table
from clusterfl.methods.presets import PRESETS, Preset, find

DEFAULT = "kin"  # the method of a table that names none


def over_preset(method: str, table: Table, path: str) -> Table:
    """The preset that a table names, written out, and the table's own keys on top of it."""
    said = named_preset(method, table, path).method
    own = {key: value for key, value in table.items() if key != "preset"}
    base, given = said.get("base"), own.get("base")
    if isinstance(base, Mapping) and isinstance(given, Mapping) and given.get("name", base["name"]) == base["name"]:
        own["base"] = {**base, **given}
    return {**{key: UNSET if value is None else value for key, value in said.items()}, **own}


def local_of_preset(table: Any, local: Table) -> Table:
    """The ``[local]`` table with what the method's preset says of local training below what is given."""
    if not isinstance(table, Mapping) or "preset" not in table:
        return local
    said = dict(named_preset(table.get("name", DEFAULT), table, "method").local)
    if "epochs" in local or "steps" in local:  # of these two one is enough
        said = {key: value for key, value in said.items() if key not in ("epochs", "steps")}
    return {**said, **local}


def below_preset(table: Table, changes: Mapping[str, Any]) -> Table:
    """A file's table when a preset comes from the command line: what the preset names is not the file's any more."""
    asked = changes.get("method")
    if not isinstance(asked, Mapping) or "preset" not in asked:
        return table
    method, local = as_table(table.get("method", {}), "method"), as_table(table.get("local", {}), "local")
    said = named_preset(asked.get("name", method.get("name", DEFAULT)), asked, "method")
    gone = {*said.local, *(("epochs", "steps") if "steps" in said.local or "epochs" in said.local else ())}
    return {
        **table,
        "method": without(method, said),
        "local": {key: value for key, value in local.items() if key not in gone},
    }


def without(method: Table, said: Preset) -> Table:
    """A method's table without what a preset names; of a base that it names the number of clusters stays."""
    base = method.get("base")
    kept = {"base": {"k": base["k"]}} if "base" in said.method and isinstance(base, Mapping) and "k" in base else {}
    return {key: value for key, value in method.items() if key not in said.names} | kept


def named_preset(method: Any, table: Mapping[str, Any], path: str) -> Preset:
    """The preset that a method's table names."""
    where = dotted(path, "preset")
    return find(str(method), choice(where, table["preset"], PRESETS, "a known preset"), where)
