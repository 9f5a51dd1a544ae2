"""The ``[method]`` table: a method by its name, and its hyper-parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from clusterfl.config import tables
from clusterfl.config.errors import choice, dotted, naming, needs_no_k
from clusterfl.config.presets import DEFAULT, named_preset, over_preset, without
from clusterfl.config.tables import Table, as_table
from clusterfl.errors import ConfigError
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.outside import is_outside, load_outside, offered, reference_of
from clusterfl.parts.local import SGD


def read_method(table: Any, path: str, local: SGD, default: str = DEFAULT) -> Method[Any]:
    """A method from its table; fields that are methods themselves (``base``) are tables with a name again."""
    given = as_table(table, path)
    name = given.pop("name", default)
    cls = find_method(name, dotted(path, "name"))
    if name == "kin" and "k" in given:
        raise needs_no_k(path, given["k"])
    if "preset" in given:
        given = over_preset(name, given, path)

    def convert(hint: Any, value: Any, where: str) -> Any:
        if not is_method(hint):
            return tables.value_of(hint, value, where)
        return value if isinstance(value, Method) else read_method(value, where, local, usual[where.rpartition(".")[2]])

    usual = {f.name: f.default.name if isinstance(f.default, Method) else DEFAULT for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    fixed = {"local": local} if "local" in tables.hints_of(cls) else {}
    if "local" in given and fixed:
        raise ConfigError(f"table [{path}.local] should be the table [local]: all methods train by it")
    method: Any = tables.read(cls, given, path, given=fixed, convert=convert)
    # a default base comes with default training
    bases = {
        f.name: dataclasses.replace(base, local=local)  # type: ignore[type-var]
        for f, base in bases_of(method)
        if f.name not in given and "local" in tables.hints_of(type(base))
    }
    made: Method[Any] = dataclasses.replace(method, **bases)
    return made


def find_method(name: Any, path: str = "method.name") -> type[Method[Any]]:
    """A method's class: one of the library's, one that a package offers, or one of the user's own code."""
    if isinstance(name, str) and name not in METHODS:
        reference = offered("methods").get(name, name)
        if is_outside(reference):
            with naming(path):
                return as_method(load_outside(reference), reference)
    return METHODS[choice(path, name, METHODS, "a known method")]


def named_settings(text: str) -> tuple[str, list[str]]:
    """A method's name and its settings, from ``ifca:k=3:start=independent`` or ``mine.py:Nearest:k=3``."""
    parts = text.split(":")
    return ":".join(p for p in parts if "=" not in p), [p for p in parts if "=" in p]


def as_method(value: Any, reference: str) -> type[Method[Any]]:
    if not (isinstance(value, type) and issubclass(value, Method) and dataclasses.is_dataclass(value)):
        raise ConfigError(f"{reference!r} should be a frozen dataclass that derives from clusterfl.Method")
    return value


def write_method(method: Method[Any]) -> Table:
    ours = METHODS.get(method.name) is type(method)  # by its own name, even if it was once asked for by its place
    name = method.name if ours else reference_of(type(method)) or method.name
    table = {"name": name, **tables.write(method, skip=("local",))}
    return {**table, **{f.name: write_method(base) for f, base in bases_of(method)}}


def bases_of(method: Method[Any]) -> Iterator[tuple[dataclasses.Field[Any], Method[Any]]]:
    """The fields of a method that are methods."""
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if isinstance(value, Method):
            yield f, value


def is_method(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, Method)


def check_k(method: Method[Any], clients: int, path: str = "method") -> None:
    """A method's number of clusters is possible with so many clients."""
    k = getattr(method, "k", None)
    if isinstance(k, int) and k > clients:
        raise ConfigError(f"{path}.k={k} should be at most the number of clients, data.clients={clients}")
    for f, base in bases_of(method):
        check_k(base, clients, f"{path}.{f.name}")


def switched(table: Mapping[str, Any], name: str) -> Table:
    """The ``[method]`` table when another method is asked for: its own parameters, and the common k.

    ``name@preset`` asks for the method with a preset's settings, over what the file's own table of it has for these.
    """
    name, at, preset = name.partition("@")
    cls = find_method(name)
    before, own = table.get("method"), table.get("methods", {})
    new = dict(own.get(name, {})) if isinstance(own, dict) else {}
    if at:
        new = {**without(new, named_preset(name, {"preset": preset}, "method")), "preset": preset}
    said = named_preset(name, new, "method").method if "preset" in new else {}
    k = before.get("k") if isinstance(before, dict) else None
    return {**({} if k is None else _with_k(cls, k, said.get("base"))), **new, "name": name}


def _with_k(cls: type[Method[Any]], k: int, base_of_preset: Any = None) -> Table:
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name == "k":
            return {"k": k}
        base = f.default if f.default is not dataclasses.MISSING else None
        if f.name == "base" and base_of_preset is not None:
            base = METHODS[base_of_preset["name"]]()
        if isinstance(base, Method) and (inner := _with_k(type(base), k)):
            return {f.name: {"name": base.name, **inner}}
    return {}
