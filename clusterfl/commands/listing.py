"""``clusterfl methods | datasets | models``: what there is, one line each, without loading PyTorch."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.about import FILE
from clusterfl.commands.common import DataRoot, Json, say_json
from clusterfl.errors import ConfigError

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="All about one of them.")]


def register(app: typer.Typer) -> None:
    for command in (methods, datasets, models):
        app.command()(command)


Privacy = Annotated[bool, typer.Option("--privacy", help="What epsilon covers of each, as a table in Markdown.")]
Costs = Annotated[bool, typer.Option("--costs", help="What a round of each costs on paper, at a million clients too.")]
Page = Annotated[bool, typer.Option("--page", help="With a NAME: what its page of the docs says out of the code.")]


def methods(
    name: Name = None, privacy: Privacy = False, costs: Costs = False, page: Page = False, json: Json = False
) -> None:
    """The methods and their parameters; with a NAME also what leaves a client, and its paper."""
    if privacy or costs or page:
        typer.echo(in_markdown(name, privacy=privacy, costs=costs))
        return
    entries = methods_found(name)
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


def in_markdown(name: str | None, *, privacy: bool, costs: bool) -> str:
    """The tables that pages of the docs hold word by word."""
    if privacy:
        from clusterfl.runs.coverage import table

        return table()
    if costs:
        from clusterfl.runs.costs import figures, formulae

        return f"{formulae()}\n\n{figures()}"
    from clusterfl.methods import METHODS
    from clusterfl.runs.method_pages import generated

    if name not in METHODS:
        raise ConfigError(f"--page should be asked for with the NAME of one of the library's methods, not {name!r}")
    return "\n\n".join(generated(name))


def methods_found(name: str | None) -> list[dict[str, Any]]:
    """The library's methods as they are listed; those of packages and of the user's own code are loaded."""
    from clusterfl.outside import is_outside, offered

    known = {e["name"]: e for e in listed("methods")}
    if name in known:
        return [known[name]]
    theirs = list(offered("methods"))
    if name is None:
        return [*known.values(), *map(loaded, theirs)]
    if name in theirs or is_outside(name):
        return [loaded(name)]
    from clusterfl.config.errors import unknown

    raise unknown("method", name, [*known, *theirs], "a known method")


def loaded(name: str) -> dict[str, Any]:
    from clusterfl.commands.about import about_method
    from clusterfl.config.methods import find_method

    return about_method(find_method(name, "method"))


def listed(what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = jsonlib.loads(FILE.read_text(encoding="utf-8"))[what]
    return found


def named(what: str, name: str | None, path: str, kind: str) -> list[dict[str, Any]]:
    """All that is listed, or the one of that name."""
    from clusterfl.config.errors import choice

    entries = {e["name"]: e for e in listed(what)}
    return list(entries.values()) if name is None else [entries[choice(path, name, entries, kind)]]


def models(name: Name = None, json: Json = False) -> None:
    """The models and their parameters."""
    found = named("models", name, "model", "a known model")
    if json:
        entries = [{k: v for k, v in e.items() if k != "doc"} for e in found]
        say_json(entries[0] if name else entries)
    elif name is None:
        lines([(e["name"], e["summary"], e["parameters"]) for e in found])
    else:
        typer.echo(f"{name}: {found[0]['summary']}")
        typer.echo(found[0]["doc"])
        parameters(found[0]["parameters"], "its parameters, in the table [model]")


def datasets(name: Name = None, data_root: DataRoot = None, json: Json = False) -> None:
    """The datasets, whether they are on this machine, and the keys of the table [data]."""
    from clusterfl.data_root import data_root as folder_of

    root, keys = folder_of(data_root), listed("data")
    entries: list[dict[str, Any]] = []
    for e in named("datasets", name, "source", "a known dataset"):
        there = not e["files"] or any(present(root, files) for files in e["files"])
        entries.append({"name": e["name"], "summary": e["summary"], "present": there, "files": e["files"]})
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
