"""A config's table: from a TOML file, changed by ``a.b=c`` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clusterfl.config.errors import dotted
from clusterfl.config.tables import Table
from clusterfl.errors import ConfigError

LARGEST = 1 << 20  # bytes of a config file
DEMO = Path(__file__).with_name("demo.toml")


def read_toml(path: Path) -> Table:
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ConfigError(f"{path} should be a TOML file of at most {LARGEST:,} bytes, but has {size:,}")
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ConfigError(f"{path} should be a TOML file that is not nested so deeply") from None
    except OSError as e:
        raise ConfigError(f"{path} should be a TOML file that can be read, but: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} should be a TOML file, but: {e}") from None


def changes_of(overrides: Iterable[str]) -> Table:
    """The table that ``a.b=c`` texts describe."""
    changes: Table = {}
    for text in overrides:
        put(changes, *_parsed(text))
    return changes


def _parsed(text: str) -> tuple[list[str], Any]:
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise ConfigError(f"--set {text!r} should be key=value, for example local.lr=0.05")
    try:
        table = tomllib.loads(f"value = {value}")
        return path, table["value"] if len(table) == 1 else value
    except tomllib.TOMLDecodeError:
        return path, value.strip()  # text needs no quotes here


def put(table: Table, path: Sequence[str], value: Any) -> None:
    """Sets a dotted key."""
    for depth, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{'.'.join(path)} should not lie below {'.'.join(path[:depth])}, which is a value")
    table[path[-1]] = value


def merged(table: Table, changes: Table, path: str = "") -> Table:
    """A table with changes on top, table by table."""
    out = dict(table)
    for key, value in changes.items():
        if not isinstance(value, dict) or key not in out:
            out[key] = value
        elif isinstance(out[key], dict):
            out[key] = merged(out[key], value, dotted(path, key))
        else:
            raise ConfigError(f"{dotted(path, key)} should be a value, not a table with {', '.join(value)}")
    return out
