"""TOML tables to frozen dataclasses and back. An error is one sentence that names the dotted key, its value,
what it should be and the nearest thing that is."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from clusterfl.errors import ClusterflError, ConfigError

T = TypeVar("T")
Table = dict[str, Any]
Convert = Callable[[Any, Any, str], Any]

UNSET = "none"  # TOML has no null: this word unsets a key whose default is something else


class UnknownKey(ConfigError):
    """A key that its table does not have."""

    def __init__(self, path: str, key: str, value: Any, known: Iterable[str], hint: str | None = None) -> None:
        self.path, self.key, self.value, self.known = path, key, value, sorted(known)
        self.close = closest(key, self.known)
        if hint is None:
            hint = dotted(path, self.close) if self.close else None
        end = f"did you mean {hint!r}?" if hint else f"known: {', '.join(self.known) or 'none'}"
        what = f"table [{dotted(path, key)}]" if isinstance(value, dict) else shown(dotted(path, key), value)
        super().__init__(f"{what} should be a known {'one' if isinstance(value, dict) else 'key'}; {end}")


def dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown(path: str, value: Any) -> str:
    text = repr(value)
    return f"{path}={text if len(text) <= 60 else text[:57] + '...'}"


def closest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The most similar of the known words, if any is similar; case and hyphens do not count."""
    plain = {k.casefold().replace("-", "_"): k for k in known}
    found = difflib.get_close_matches(word.casefold().replace("-", "_"), list(plain), n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def choice(path: str, value: Any, known: Iterable[str], what: str) -> str:
    """``value``, if it is one of the known names."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    close = closest(str(value), names)
    end = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
    raise ConfigError(f"{shown(path, value)} should be {what}; {end}")


def as_table(value: Any, path: str) -> Table:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown(path, value)} should be a table")
    return dict(value)


def hints_of(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def read(
    cls: type[T],
    table: Mapping[str, Any],
    path: str,
    *,
    given: Mapping[str, Any] | None = None,
    aliases: Mapping[str, str] | None = None,
    convert: Convert | None = None,
) -> T:
    """The dataclass that a table describes. ``given`` fields are no keys of the table; ``aliases`` maps a key
    to its field's name."""
    given, aliases, convert = given or {}, aliases or {}, convert or value_of
    hints = hints_of(cls)
    mine = [f for f in dataclasses.fields(cls) if f.init and f.name not in given]  # type: ignore[arg-type]
    names, key_of = [f.name for f in mine], {name: key for key, name in aliases.items()}
    field_of = {name: name for name in names} | {a: name for a, name in aliases.items() if name in names}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in field_of:
            known = [k for k in field_of if k not in aliases.values()]
            raise UnknownKey(path, key, value, known)
        if field_of[key] in found:
            raise ConfigError(f"{shown(dotted(path, key), value)} should be given once, under one of its two names")
        found[field_of[key]] = convert(hints[field_of[key]], value, dotted(path, key))
    for f in mine:
        if f.name not in found and f.default is f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{dotted(path, key_of.get(f.name, f.name))} should be given: {describe(hints[f.name])}")
    with naming(path, key_of):
        return cls(**found, **given)


@contextmanager
def naming(path: str, keys: Mapping[str, str] | None = None) -> Iterator[None]:
    """Errors raised inside, ``name=value should …``, get the table's path in front of the name."""
    try:
        yield
    except (ValueError, TypeError, ClusterflError) as error:
        said, kind = str(error), type(error) if isinstance(error, ClusterflError) else ConfigError
        start = re.match(r"([A-Za-z_]\w*)=", said)
        if start is None:
            raise kind(f"{path}: {said}") from error
        key = (keys or {}).get(start[1], start[1])
        raise kind(dotted(path, key) + said[len(start[1]) :]) from error


def value_of(hint: Any, value: Any, path: str) -> Any:
    """A TOML value as the type says, strictly: no text for numbers, no 3.0 for 3, no true for 1."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    options = _options(hint)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            if isinstance(value, option):
                return value
            if isinstance(value, Mapping):
                return read(option, value, path)
    plain = [o for o in options if not dataclasses.is_dataclass(o)]
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
    for option in _options(hint):
        if option in words:
            parts.append(words[option])
        elif get_origin(option) is Literal:
            parts.append("one of " + ", ".join(repr(w) for w in get_args(option)))
        elif get_args(option):
            parts.append("a list of " + many.get(get_args(option)[0], "values"))
        elif dataclasses.is_dataclass(option):
            parts.append("a table")
    if types.NoneType in _options(hint) and str not in _options(hint):
        parts.append(repr(UNSET))
    return " or ".join(parts)


def write(value: Any, *, skip: Iterable[str] = (), keys: Mapping[str, str] | None = None) -> Table:
    """The table of a dataclass: what :func:`read` turns back into an equal one.

    None is left out where it is the default, and is the word "none" where it is not.
    """
    names, table = keys or {}, {}
    for f in dataclasses.fields(value):
        if f.name in skip or not f.init:
            continue
        v = getattr(value, f.name)
        if v is None and (f.default is None or _implied(value, f.name)):
            continue
        table[names.get(f.name, f.name)] = UNSET if v is None else plain(v)
    return table


def _implied(value: Any, name: str) -> bool:
    """Whether a None follows from the other fields (SGD's epochs, once steps are given)."""
    others = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init and f.name != name}
    return bool(type(value)(**others) == value)


def plain(value: Any) -> Any:
    """A field's value as TOML can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return write(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return value


def docs_of(cls: Any) -> dict[str, str]:
    """What the fields of a dataclass mean: their ``doc`` metadata, else the comment beside them."""
    import inspect

    found = {f.name: str(f.metadata["doc"]) for f in dataclasses.fields(cls) if "doc" in f.metadata}
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return found
    comments = re.findall(r"^    (\w+): [^#\n]*  # (.+)$", source, flags=re.MULTILINE)
    return {**dict(comments), **found}
