"""The ``[method]`` table: a method by its name, and its hyper-parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from clusterfl.config import tables
from clusterfl.config.errors import choice, dotted
from clusterfl.config.tables import Table, as_table
from clusterfl.errors import ConfigError
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.parts.local import SGD


def read_method(table: Any, path: str, local: SGD) -> Method[Any]:
    """A method from its table; fields that are methods themselves (``base``) are tables with a name again."""
    given = as_table(table, path)
    name = choice(dotted(path, "name"), given.pop("name", "ifca"), METHODS, "a known method")

    def convert(hint: Any, value: Any, where: str) -> Any:
        if not is_method(hint):
            return tables.value_of(hint, value, where)
        return value if isinstance(value, Method) else read_method(value, where, local)

    cls = METHODS[name]
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


def write_method(method: Method[Any]) -> Table:
    table = {"name": method.name, **tables.write(method, skip=("local",))}
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
    """The ``[method]`` table when another method is asked for: its own parameters, and the common k."""
    choice("method.name", name, METHODS, "a known method")
    before, own = table.get("method"), table.get("methods", {})
    new = dict(own.get(name, {})) if isinstance(own, dict) else {}
    k = before.get("k") if isinstance(before, dict) else None
    return {**({} if k is None else _with_k(METHODS[name], k)), **new, "name": name}


def _with_k(cls: type[Method[Any]], k: int) -> Table:
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name == "k":
            return {"k": k}
        base = f.default if f.default is not dataclasses.MISSING else None
        if isinstance(base, Method) and (inner := _with_k(type(base), k)):
            return {f.name: {"name": base.name, **inner}}
    return {}
