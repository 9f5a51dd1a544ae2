"""The files that a run leaves behind, as far as they are the same each time it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def timeless(value: Any) -> Any:
    """Without wall-clock times, which are the only thing that may differ."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = timeless(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
    return summary


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [timeless(json.loads(line)) for line in lines]


def contents(folder: Path) -> dict[str, Any]:
    """Tables and models as bytes, JSON without times; all results of a finished run but its config."""
    found: dict[str, Any] = {"summary.json": summary_of(folder), "rounds.jsonl": rounds_of(folder)}
    for path in sorted([*folder.glob("*.parquet"), *(folder / "models").iterdir()]):
        found[path.name] = path.read_bytes()
    return found
