"""``clusterfl methods | datasets | models``: what there is, one line each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import DataRoot, Json, say_json

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="All about one of them.")]


def register(app: typer.Typer) -> None:
    for command in (methods, datasets, models):
        app.command()(command)


Privacy = Annotated[bool, typer.Option("--privacy", help="What epsilon covers of each, as a table in Markdown.")]


def methods(name: Name = None, privacy: Privacy = False, json: Json = False) -> None:
    """The methods and their parameters; with a NAME also what leaves a client, and its paper."""
    from clusterfl.config.methods import find_method
    from clusterfl.methods import METHODS
    from clusterfl.outside import offered

    if privacy:
        from clusterfl.runs.coverage import table

        typer.echo(table())
        return
    entries = [about_method(find_method(n, "method")) for n in ([name] if name else [*METHODS, *offered("methods")])]
    if json:
        say_json(entries[0] if name else entries)
    elif name is None:
        lines([(e["name"], e["summary"], e["parameters"]) for e in entries])
    else:
        e = entries[0]
        typer.echo(f"{e['name']}: {e['summary']}")
        typer.echo(f"paper: {e['paper'] or '-'}")
        for title, entries in (("what leaves a client", e["leaves"]), ("what stays on it", e["stays"])):
            typer.echo(f"{title}: {'' if entries else 'nothing'}")
            for entry in entries:
                typer.echo(f"  {entry['procedure']}: {entry['field']}, {entry['what']}")
        parameters(e["parameters"], "its parameters, in the table [method]")
        for title, said in e["presets"].items():
            local = ", ".join(f"{k} = {shown(v)}" for k, v in said["local"].items())
            typer.echo(f"preset = {title!r}: {said['why']}{f'; [local] {local}' if local else ''}")


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


def models(name: Name = None, json: Json = False) -> None:
    """The models and their parameters."""
    from clusterfl.config.errors import choice
    from clusterfl.config.tables import describe, hints_of, plain
    from clusterfl.models import MODELS

    if name is not None:
        choice("model", name, MODELS, "a known model")
    entries: list[dict[str, Any]] = []
    for n in [name] if name else MODELS:
        entry = MODELS[n]
        hints = hints_of(entry.builder)
        found = [
            {"name": p, "default": plain(default), "type": describe(hints[p]), "doc": ""}
            for p, default in entry.params.items()
        ]
        entries.append({"name": n, "summary": entry.description, "parameters": found})
    if json:
        say_json(entries[0] if name else entries)
    elif name is None:
        lines([(e["name"], e["summary"], e["parameters"]) for e in entries])
    else:
        typer.echo(f"{name}: {entries[0]['summary']}")
        typer.echo(str(MODELS[name].builder.__doc__ or "").strip())
        parameters(entries[0]["parameters"], "its parameters, in the table [model]")


def datasets(name: Name = None, data_root: DataRoot = None, json: Json = False) -> None:
    """The datasets, whether they are on this machine, and the keys of the table [data]."""
    from clusterfl.config.errors import choice
    from clusterfl.config.tables import describe, hints_of, plain
    from clusterfl.data.config import DataConfig
    from clusterfl.data.registry import SOURCES
    from clusterfl.data.registry import data_root as folder_of
    from clusterfl.fields import docs_of

    if name is not None:
        choice("source", name, SOURCES, "a known dataset")
    root = folder_of(data_root)
    hints, docs = hints_of(DataConfig), docs_of(DataConfig)
    keys = [
        {"name": f.name, "default": plain(f.default), "type": describe(hints[f.name]), "doc": docs.get(f.name, "")}
        for f in dataclasses.fields(DataConfig)
    ]
    entries: list[dict[str, Any]] = []
    for n in [name] if name else SOURCES:
        entry = SOURCES[n]
        there = not entry.files or any(present(root, files) for files in entry.files)
        entries.append({"name": n, "summary": entry.about, "present": there, "files": list(entry.files)})
    if json:
        say_json(entries[0] if name else {"root": str(root), "datasets": entries, "parameters": keys})
        return
    marks = {e["name"]: "" if e["present"] else f" (not here: put {e['files'][0]} into {root})" for e in entries}
    lines([(e["name"], e["summary"] + marks[e["name"]], []) for e in entries])
    if name is not None:
        for files in entries[0]["files"]:
            typer.echo(f"  found as {files} in {root}")
    else:
        typer.echo(f"\ndata folder: {root}")
        parameters(keys, "keys of the table [data]")


def present(root: Path, files: str) -> bool:
    """Whether a data folder holds what an entry asks for: "a.npz", "b/c.idx[.gz]" or "d/*.json and e/"."""
    patterns = [part.strip().rstrip("/") for part in files.split(" and ")]
    names = [(p.removesuffix("[.gz]"), p.replace("[.gz]", ".gz")) for p in patterns]
    return all(any(any(root.glob(name)) for name in pair) for pair in names)


def lines(entries: list[tuple[str, str, list[dict[str, Any]]]]) -> None:
    """One line each: name, what it is, parameters."""
    width = max(len(name) for name, _, _ in entries)
    for name, what, params in entries:
        known = ", ".join(f"{p['name']}={shown(p['default'])}" for p in params)
        typer.echo(f"{name.ljust(width)}  {what}" + (f"  [{known}]" if known else ""))


def parameters(params: list[dict[str, Any]], title: str) -> None:
    if not params:
        typer.echo(f"{title}: none")
        return
    typer.echo(f"{title}:")
    width = max(len(p["name"]) for p in params)
    for p in params:
        doc = f"; {p['doc']}" if p["doc"] else ""
        other = "".join(f" ({title}: {shown(value)})" for title, value in p.get("presets", {}).items())
        typer.echo(f"  {p['name'].ljust(width)}  {shown(p['default'])}{other}: {p['type']}{doc}")


def shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={shown(v)}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
