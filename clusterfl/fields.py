"""Fields of dataclasses that say what they mean: the one place where commands, docs and errors find it."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args

T = TypeVar("T")


def option(default: T, doc: str) -> T:
    """A field with a default, and what it means in half a sentence."""
    made: Any = dataclasses.field(default=default, metadata={"doc": doc})
    return made  # type: ignore[no-any-return]


def docs_of(cls: Any) -> dict[str, str]:
    """What the fields of a dataclass mean, by name."""
    return {f.name: str(f.metadata.get("doc", "")) for f in dataclasses.fields(cls)}


def at_least(low: float, value: Any, *names: str) -> None:
    """Raises where one of these fields is given and below ``low``, or not a number."""
    for name in names:
        number = getattr(value, name)
        if number is not None and not number >= low:
            raise ValueError(f"{name}={number} should be at least {low:g}")


def at_most(high: float, value: Any, *names: str) -> None:
    """Raises where one of these fields is given and above ``high``, or not a number."""
    for name in names:
        number = getattr(value, name)
        if number is not None and not number <= high:
            raise ValueError(f"{name}={number} should be at most {high:g}")


def above(low: float, value: Any, *names: str) -> None:
    """Raises where one of these fields is given and not above ``low``."""
    for name in names:
        number = getattr(value, name)
        if number is not None and not number > low:
            raise ValueError(f"{name}={number} should be above {low:g}")


def one_of(words: Any, value: Any, *names: str) -> None:
    """Raises where one of these fields is none of the words of a ``Literal``."""
    known = get_args(words)
    for name in names:
        if getattr(value, name) not in known:
            raise ValueError(f"{name}={getattr(value, name)!r} should be {' or '.join(repr(w) for w in known)}")
