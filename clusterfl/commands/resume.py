"""``clusterfl resume``: goes on where a run was stopped, to the same bits as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterfl.commands.common import DataRoot, Json, Quiet, Set, Verbose, say_json, set_logging
from clusterfl.errors import ConfigError


def register(app: typer.Typer) -> None:
    app.command()(resume)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the run.")],
    set_: Set = [],  # noqa: B006 (typer reads it)
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Go on with a run from its last checkpoint.

    --set may change only what leaves the rounds so far as they are: rounds (upwards), engine.workers and
    the [checkpoint] table.

    \b
    Examples:
      clusterfl resume runs/mine
      clusterfl resume runs/mine --set rounds=50
    """
    set_logging(verbose, quiet)
    from clusterfl.commands.run import show_run
    from clusterfl.config import Config
    from clusterfl.runs.data_card import check_rebuildable
    from clusterfl.runs.folder import summary_of

    there = folder / "config.toml"
    if not there.exists():
        raise ConfigError(f"{folder} should be the folder of a run, with a config.toml; start one with `clusterfl run`")
    check_rebuildable(folder, "go on there, with clusterfl.run(population, model, method, out=DIR, resume=True)")
    before, now = Config.load(there), Config.load(there, set_, data_root=data_root)
    if data_root is not None:  # where the data lies may change, not what it is: its digest is checked
        before = Config.load(there, data_root=data_root)
    if now.digest() != before.digest():
        raise ConfigError("--set may change only rounds, engine.workers and checkpoint in a resumed run")
    if now.rounds < before.rounds:
        raise ConfigError(f"rounds={now.rounds} should be at least the run's own, {before.rounds}")
    done = summary_of(folder)
    if done is not None and done["rounds"] >= now.rounds:
        if json:
            say_json(done)
        else:
            typer.echo(f"{folder} is finished: {now.rounds} rounds; --set rounds=N goes on")
        return
    show_run(now, folder, resume=True, force=False, json=json, quiet=quiet)
