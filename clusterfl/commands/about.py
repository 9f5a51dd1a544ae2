"""What there is, as JSON: methods, models, datasets and the keys of ``[data]``, read from the code itself.

That needs PyTorch, whose loading takes seconds, so the commands that list them read ``listing.json``, which
``make listing`` writes; a test says when it is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listing.json")


def everything() -> dict[str, Any]:
    from clusterfl.data.registry import SOURCES
    from clusterfl.methods import METHODS
    from clusterfl.models import MODELS

    return {
        "methods": [about_method(cls) for cls in METHODS.values()],
        "models": [about_model(name, entry) for name, entry in MODELS.items()],
        "datasets": [{"name": n, "summary": e.about, "files": list(e.files)} for n, e in SOURCES.items()],
        "data": data_keys(),
    }


def as_text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def about_method(cls: Any) -> dict[str, Any]:
    from clusterfl.config.methods import write_method
    from clusterfl.config.tables import describe, hints_of, plain
    from clusterfl.fields import docs_of
    from clusterfl.method import Method
    from clusterfl.methods.presets import PRESETS

    hints, docs = hints_of(cls), docs_of(cls)
    said = {title: known[cls.name] for title, known in PRESETS.items() if cls.name in known}
    found = []
    for f in dataclasses.fields(cls):
        if f.name == "local":
            continue
        default = f.default if f.default is not dataclasses.MISSING else None
        value = write_method(default) if isinstance(default, Method) else plain(default)
        kind = "a method's table" if isinstance(default, Method) else describe(hints[f.name])
        other = {title: p.method[f.name] for title, p in said.items() if f.name in p.method}
        found.append({"name": f.name, "default": value, "presets": other, "type": kind, "doc": docs.get(f.name, "")})
    return {
        "name": cls.name,
        "summary": cls.summary,
        "parameters": found,
        **exchanges(cls()),
        "paper": cls.paper,
        "presets": {t: {"why": p.why, "method": dict(p.method), "local": dict(p.local)} for t, p in said.items()},
        "clustered": cls.clustered,
    }


def exchanges(method: Any) -> dict[str, Any]:
    """What the method's procedures send and keep, as they declare it (with its default base, if it wraps one)."""
    from clusterfl.message import Kept
    from clusterfl.method import exchanged

    sides: dict[str, list[dict[str, str]]] = {"leaves": [], "stays": []}
    for procedure, fields in exchanged(method).items():
        for field, kind in fields.items():
            entry = {"procedure": procedure, "field": field, "kind": type(kind).__name__.lower(), "what": str(kind)}
            sides["stays" if isinstance(kind, Kept) else "leaves"].append(entry)
    return sides


def about_model(name: str, entry: Any) -> dict[str, Any]:
    from clusterfl.config.tables import describe, hints_of, plain

    hints = hints_of(entry.builder)
    found = [
        {"name": p, "default": plain(default), "type": describe(hints[p]), "doc": ""}
        for p, default in entry.params.items()
    ]
    doc = inspect.getdoc(entry.builder) or ""
    return {"name": name, "summary": entry.description, "doc": doc, "parameters": found}


def data_keys() -> list[dict[str, Any]]:
    from clusterfl.config.tables import describe, hints_of, plain
    from clusterfl.data.config import DataConfig
    from clusterfl.fields import docs_of

    hints, docs = hints_of(DataConfig), docs_of(DataConfig)
    return [
        {"name": f.name, "default": plain(f.default), "type": describe(hints[f.name]), "doc": docs.get(f.name, "")}
        for f in dataclasses.fields(DataConfig)
    ]


if __name__ == "__main__":
    FILE.write_text(as_text(everything()), encoding="utf-8")
