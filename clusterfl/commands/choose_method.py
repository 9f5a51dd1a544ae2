"""``clusterfl choose-method``: which method to begin with, why, and the config for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterfl.commands.common import ConfigFile, DataRoot, Json, Set, Verbose, say_json, set_logging


def register(app: typer.Typer) -> None:
    app.command(name="choose-method")(choose_method)


def choose_method(
    config: ConfigFile = None,
    answers: Annotated[
        list[str],
        typer.Option("--answer", metavar="QUESTION=ANSWER", help="One of the questions, as statistics=no or k=4."),
    ] = [],  # noqa: B006 (typer reads it)
    ask: Annotated[bool, typer.Option("--ask", help="Ask the questions one by one.")] = False,
    set_: Set = [],  # noqa: B006
    data_root: DataRoot = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Which method to begin with: a recommendation, its reason, and a config to start from.

    With a config its clients are looked at; without one only the answers decide. Questions that are not answered
    take the answer in brackets: k [unknown], statistics [yes], individual [yes], bytes [yes], skew [nuisance],
    newcomers [labelled], personal [no]. docs/which-method.md has the whole table.

    \b
    Examples:
      clusterfl choose-method --ask
      clusterfl choose-method scenario.toml
      clusterfl choose-method --answer statistics=no --answer k=4
    """
    set_logging(verbose)
    from clusterfl.config import Config
    from clusterfl.config.overrides import changes_of
    from clusterfl.config.tables import read
    from clusterfl.fields import docs_of
    from clusterfl.runs.choose_method import Situation, looked_at, recommend

    given: dict[str, Any] = changes_of(answers)
    if ask:
        for name, question in docs_of(Situation).items():
            default = getattr(Situation(), name)
            said = typer.prompt(question, default="unknown" if default is None else default)
            given[name] = None if said == "unknown" else int(said) if name == "k" and said.isdigit() else said
    advice = recommend(read(Situation, given, "answer"))
    notes: list[str] = []
    if config is not None or set_:
        notes = looked_at(Config.load(config, set_, data_root=data_root).population())
    if json:
        facts = {"method": advice.method, "settings": advice.settings, "reason": advice.reason}
        say_json({**facts, "beside": advice.beside, "notes": notes, "toml": advice.toml()})
        return
    for note in notes:
        typer.echo(note)
    typer.echo(f"begin with {advice.method}: {advice.reason}")
    typer.echo(
        f"and see whether it pays: clusterfl compare CONFIG --methods {','.join([*advice.beside, advice.method])}"
    )
    typer.echo(f"\n{advice.toml()}")
