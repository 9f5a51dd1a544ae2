"""TOML tables to frozen dataclasses and back, by their types."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from clusterfl.config.errors import UnknownKey, choice, dotted, naming, shown
from clusterfl.errors import ConfigError, closest

T = TypeVar("T")
Table = dict[str, Any]
Convert = Callable[[Any, Any, str], Any]

UNSET = "none"  # TOML has no null: this word unsets a key whose default is something else


def as_table(value: Any, path: str) -> Table:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(path, value)} should be a table")
    return dict(value)


@lru_cache(maxsize=256)
def hints_of(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def read(
    cls: type[T],
    table: Mapping[str, Any],
    path: str,
    *,
    given: Mapping[str, Any] | None = None,
    convert: Convert | None = None,
) -> T:
    """The dataclass that a table describes. ``given`` fields are no keys of the table."""
    given, convert = given or {}, convert or value_of
    hints = hints_of(cls)  # type: ignore[arg-type]
    mine = {f.name: f for f in dataclasses.fields(cls) if f.init and f.name not in given}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in mine:
            raise UnknownKey(path, key, value, mine)
        values[key] = convert(hints[key], value, dotted(path, key))
    for name, f in mine.items():
        if name not in values and f.default is f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{dotted(path, name)} should be given: {describe(hints[name])}")
    with naming(path):
        return cls(**values, **given)


def value_of(hint: Any, value: Any, path: str) -> Any:
    """A TOML value as the type says, strictly: no text for numbers, no 3.0 for 3, no true for 1."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    options = _options(hint)
    classes = [o for o in options if dataclasses.is_dataclass(o) and isinstance(o, type)]
    if any(isinstance(value, o) for o in classes):
        return value
    named = _by_name(classes)
    if named and isinstance(value, str | Mapping):
        return _named_part(named, value, path)
    if classes and isinstance(value, Mapping):
        return read(classes[0], value, path)
    plain = [o for o in options if o not in classes]
    if types.NoneType in options and (value is None or (value == UNSET and str not in plain)):
        return None
    if plain:
        try:
            text = json.dumps(value)  # JSON's strict mode takes a list for a tuple and 1 for 1.0, and nothing else
            got = _adapter(Union[tuple(plain)]).validate_json(text, strict=True)  # noqa: UP007
        except (ValidationError, TypeError, ValueError):
            pass
        else:
            return tuple(got) if isinstance(got, list) else got
    error = f"{shown(path, value)} should be {describe(hint)}"
    words = [w for o in plain if get_origin(o) is Literal for w in get_args(o) if isinstance(w, str)]
    close = closest(value, words) if isinstance(value, str) else None
    raise ConfigError(error + (f"; did you mean {close!r}?" if close else ""))


def _by_name(classes: Iterable[Any]) -> dict[str, Any]:
    """Parts that are chosen by their name: ``aggregate = "median"``, or a table with that name and its numbers."""
    return {name: cls for cls in classes if (name := part_name(cls)) is not None}


def part_name(cls: Any) -> str | None:
    """The name by which a part is chosen: a class variable, not a field."""
    name = getattr(cls, "name", None)
    return name if isinstance(name, str) and "name" not in {f.name for f in dataclasses.fields(cls)} else None


def _named_part(parts: Mapping[str, Any], value: Any, path: str) -> Any:
    table = {"name": value} if isinstance(value, str) else dict(value)
    where = path if isinstance(value, str) else dotted(path, "name")
    name = choice(where, table.pop("name", None), parts, "one of " + ", ".join(repr(n) for n in parts))
    return read(parts[name], table, path)


@lru_cache(maxsize=256)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe(hint: Any) -> str:
    """A type in plain words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    many = {int: "whole numbers", float: "numbers", str: "texts"}
    parts = []
    names = _by_name(o for o in _options(hint) if dataclasses.is_dataclass(o))
    if names:
        parts.append("one of " + ", ".join(repr(n) for n in names) + ", or a table with that name")
    for option in _options(hint):
        if option in words:
            parts.append(words[option])
        elif get_origin(option) is Literal:
            parts.append("one of " + ", ".join(repr(w) for w in get_args(option)))
        elif get_args(option):
            parts.append("a list of " + many.get(get_args(option)[0], "values"))
        elif dataclasses.is_dataclass(option) and not names:
            parts.append("a table")
    if types.NoneType in _options(hint) and str not in _options(hint):
        parts.append(repr(UNSET))
    return " or ".join(parts)


def write(value: Any, *, skip: Iterable[str] = ()) -> Table:
    """The table of a dataclass: what :func:`read` turns back into an equal one.

    None is left out where it is the default, and is the word "none" where it is not.
    """
    table: Table = {}
    for f in dataclasses.fields(value):
        if f.name in skip or not f.init:
            continue
        v = getattr(value, f.name)
        if v is None and (f.default is None or _implied(value, f.name)):
            continue
        table[f.name] = UNSET if v is None else plain(v)
    return table


def _implied(value: Any, name: str) -> bool:
    """Whether a None follows from the other fields (SGD's epochs, once steps are given)."""
    others = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init and f.name != name}
    return bool(type(value)(**others) == value)


def plain(value: Any) -> Any:
    """A field's value as TOML can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name, table = part_name(type(value)), write(value)
        if name is None:
            return table
        return {"name": name, **table} if table else name
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return value
