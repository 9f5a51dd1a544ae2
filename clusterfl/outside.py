"""Code that is not the library's: a class or function of a user's file (``mine.py:Nearest``) or package
(``package.module:Nearest``), or one that an installed package offers under an entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from clusterfl.errors import ConfigError

_REFERENCES: dict[Any, str] = {}  # what was loaded, and the name that finds it again from anywhere
_ALLOWED: ContextVar[tuple[str, ...] | None] = ContextVar("allowed", default=None)  # None: everything


def is_outside(name: str) -> bool:
    """Whether a name in a config is a reference to a user's own code."""
    where, colon, what = name.rpartition(":")
    return bool(colon) and what.isidentifier() and (where.endswith(".py") or _dotted(where))


def load_outside(reference: str) -> Any:
    """What a reference names. A file's folder goes on the import path, so that worker processes find it too."""
    allowed = _ALLOWED.get()
    if allowed is not None:
        reference = own_copy(reference, allowed)
    where, _, what = reference.rpartition(":")
    module = _of_file(where) if where.endswith(".py") else where
    if not where.endswith(".py"):
        _find_in(Path.cwd())
    try:
        loaded = import_module(module)
    except Exception as e:
        raise ConfigError(f"{reference!r} should be importable, but {type(e).__name__}: {e}") from e
    if where.endswith(".py"):
        _check_file(loaded, Path(where), reference)
    if not hasattr(loaded, what):
        raise ConfigError(f"{reference!r} should name something in {where}, which has no {what!r}")
    value = getattr(loaded, what)
    _REFERENCES[value] = f"{Path(where).resolve()}:{what}" if where.endswith(".py") else reference
    return value


def file_modules() -> set[ModuleType]:
    """The modules that users' files became: other machines have no such file."""
    files = [reference.rpartition(":")[0] for reference in _REFERENCES.values()]
    return {sys.modules[Path(file).stem] for file in files if file.endswith(".py") and Path(file).stem in sys.modules}


def load_function(reference: str, what: str) -> Any:
    """A function of the user's own code."""
    found = load_outside(reference)
    if not callable(found):
        raise ConfigError(f"{reference!r} should be a function {what}")
    return found


def absolute(reference: str) -> str:
    """The same reference from anywhere."""
    where, _, what = reference.rpartition(":")
    return f"{Path(where).expanduser().resolve()}:{what}" if where.endswith(".py") else reference


@contextmanager
def only(references: Sequence[str] | None) -> Iterator[None]:
    """Where names come from somebody else: nothing but these, each from where it lies here, can be loaded within.
    None: a name that this machine's own operator gave, anything."""
    token = _ALLOWED.set(None if references is None else tuple(references))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def own_copy(reference: str, allowed: Sequence[str]) -> str:
    """Which of the allowed references has the same module's name and the same object's."""
    for mine in allowed:
        if _stem(mine) == _stem(reference):
            return mine
    raise ConfigError(f"{reference!r} should be allowed on the node: start it with --code FILE.py:NAME")


def _stem(reference: str) -> tuple[str, str]:
    where, _, what = reference.rpartition(":")
    return Path(where).stem if where.endswith(".py") else where, what


def reference_of(value: Any) -> str | None:
    """The name under which :func:`load_outside` loaded it; None: it is the library's own, or came from Python."""
    return _REFERENCES.get(value)


def offered(group: str) -> dict[str, str]:
    """Names that installed packages offer under the entry points ``clusterfl.GROUP``, and what they refer to."""
    return {entry.name: entry.value for entry in entry_points(group=f"clusterfl.{group}")}


def _dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _of_file(where: str) -> str:
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{where!r} should be a Python file, but there is none")
    if not path.stem.isidentifier():
        raise ConfigError(f"{path.name!r} should be a name that Python can import: letters, digits and _")
    _find_in(path.parent)
    return path.stem


def _check_file(loaded: Any, path: Path, reference: str) -> None:
    """A module of the same name that was there before would be used in place of the user's file."""
    used = getattr(loaded, "__file__", None)
    if used is None or Path(used).resolve() != path.expanduser().resolve():
        raise ConfigError(f"{reference!r} should have a name of its own: a module {path.stem!r} exists already")


def _find_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
