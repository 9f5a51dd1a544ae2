"""Errors about a config: one sentence that names the dotted key, its value, what it should be and the nearest
thing that is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clusterfl.errors import ClusterflError, ConfigError, closest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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

    def elsewhere(self, places: Mapping[str, str]) -> UnknownKey:
        """The same error; a key that exists in another table is suggested with that table."""
        others = {name: place for name, place in places.items() if place != dotted(self.path, self.key)}
        exact = others.get(self.key.casefold())
        near = exact or (None if self.close else others.get(closest(self.key, others, 0.75) or ""))
        return UnknownKey(self.path, self.key, self.value, self.known, near)


def dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown(path: str, value: Any) -> str:
    text = repr(value)
    return f"{path}={text if len(text) <= 60 else text[:57] + '...'}"


def choice(path: str, value: Any, known: Iterable[str], what: str) -> str:
    """``value``, if it is one of the known names."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    raise unknown(path, value, names, what)


def unknown(path: str, value: Any, known: Iterable[str], what: str) -> ConfigError:
    """The error about a name that is none of the known ones."""
    names = list(known)
    close = closest(str(value), names)
    end = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
    return ConfigError(f"{shown(path, value)} should be {what}; {end}")


def needs_no_k(path: str, value: Any) -> ConfigError:
    """The error about a number of clusters that kin is told, whom many use without having chosen it."""
    remedy = f"{dotted(path, 'groups')} fixes it, or method.name=ifca chooses a method that is told it"
    return ConfigError(
        f"{shown(dotted(path, 'k'), value)} should be left out: kin finds the number of groups itself; {remedy}"
    )


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors raised inside, ``name=value should …``, get the table's path in front of the name."""
    try:
        yield
    except (ValueError, TypeError, ClusterflError) as error:
        text, kind = str(error), type(error) if isinstance(error, ClusterflError) else ConfigError
        named = re.match(r"[A-Za-z_]\w*=", text)
        raise kind(dotted(path, text) if named else f"{path}: {text}") from error


def sentence(error: ErrorDetails) -> str:
    """A pydantic error about one of the config's own keys."""
    path, value = ".".join(str(part) for part in error["loc"]), error["input"]
    text = error["msg"].removeprefix("Input ").replace("valid integer", "whole number").replace("valid ", "")
    text = text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    text = text.replace("greater than", "above").replace("less than", "below")
    return f"{shown(path, value)} {text}"
