"""``clusterfl compare``: several methods on one scenario, over several seeds, in one table."""

from __future__ import annotations

import itertools
import json as jsonlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Force,
    Json,
    Out,
    Quiet,
    Report,
    Set,
    Verbose,
    check_all_learnt,
    check_report,
    draw,
    picture,
    resumable,
    say_json,
    say_report,
    set_logging,
)
from clusterfl.errors import ConfigError

if TYPE_CHECKING:
    from clusterfl.callback import Callback

ALWAYS = ("local", "fedavg")  # a table without them says little


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="A,B",
            help="Methods, also as ifca:k=3 or mine.py:Class; local and fedavg are always there.",
        ),
    ] = "local,fedavg,ifca,kin",
    seeds: Annotated[str, typer.Option("--seeds", metavar="0-2", help="Seeds, as 0-2 or 0,3,5.")] = "0-2",
    reach: Annotated[
        float | None,
        typer.Option(
            "--reach", metavar="0.9", help="Also the traffic until the mean (accuracy, or RMSE) first was this good."
        ),
    ] = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    out: Out = None,
    force: Force = False,
    report: Report = False,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare methods on one scenario: mean ± standard deviation over seeds.

    A method takes its parameters from the config's [methods.NAME] table ([method] for the one named there);
    the number of clusters k of [method] goes to all that have one. Runs that are in the folder already, of an
    interrupted comparison or of one with fewer methods or seeds, are not run again (unless --force).

    \b
    Examples:
      clusterfl compare
      clusterfl compare scenario.toml --methods local,fedavg,fesem,kin --seeds 0-4 --out runs/table
      clusterfl compare scenario.toml --methods ifca,md-icfl --reach 0.9
      clusterfl compare scenario.toml --methods ifca,ifca:k=3,mine.py:Nearest
      clusterfl compare scenario.toml --methods md-icfl,md-icfl@paper
    """
    set_logging(verbose, quiet)
    from clusterfl.config import Config
    from clusterfl.runs.compare import compare as carry_out
    from clusterfl.runs.compare_tables import as_csv, as_markdown, as_text
    from clusterfl.runs.files import write_whole
    from clusterfl.runs.folder import check_free, exclusive, withdrawn_unless_begun, write_config
    from clusterfl.runs.progress import Progress, display

    base = Config.load(config, set_, data_root=data_root)
    if reach is not None and not (0.0 < reach <= 1.0 or (reach > 0.0 and base.task.regression)):
        raise ConfigError(f"--reach {reach:g} should be above 0" + ("" if base.task.regression else " and at most 1"))
    names, numbers = parse_methods(methods), parse_seeds(seeds)
    configs = {name: base.variant(name) for name in names}  # all of them are checked before any starts
    if report:
        check_report()
    folder = out or Path("runs") / f"compare-{config.stem if config else 'demo'}"
    check_free(folder, base, force=force)
    place = {pair: n for n, pair in enumerate(itertools.product(numbers, names), start=1)}

    def watch(name: str, seed: int, *_: object) -> list[Callback]:
        return [Progress(shown, f"run {place[seed, name]} of {len(place)}: {name}, seed {seed}")]

    with resumable(), exclusive(folder), withdrawn_unless_begun(folder), display(quiet) as shown:
        check_free(folder, base, force=force)  # another comparison may have begun and ended since
        write_config(folder, base)
        result = carry_out(base, configs, numbers, folder, force=force, reach=reach, watch=watch)
        for name, text in (
            ("compare.json", jsonlib.dumps(result, indent=2) + "\n"),
            ("table.csv", as_csv(result)),
            ("table.md", as_markdown(result)),
        ):
            write_whole(folder / name, text.encode())
    drawn = draw(folder) if report else None
    lost = [f"{m['method']}, seed {r['seed']}" for m in result["methods"] for r in m["runs"] if r["learnt_nothing"]]
    if json:
        say_json(result)
        check_all_learnt(lost)
        return
    typer.echo(as_text(result))
    population = base.with_seed(numbers[0]).population()
    true = [] if population.truth is None else population.truth.tolist()
    truth = dict(zip(population.names, true, strict=False))
    for entry in result["methods"]:
        if configs[entry["method"]].method.clustered:
            title, *rest = picture(entry["runs"][0]["assignments"], truth)
            typer.echo(f"\n{entry['method']}, seed {numbers[0]}: {title}")
            for line in rest:
                typer.echo(f"  {line}")
    typer.echo(f"\nwritten to {folder}")
    say_report(drawn, folder)
    check_all_learnt(lost)


def parse_methods(text: str) -> list[str]:
    """Names (and settings) in the order given, Local and FedAvg first where they are missing."""
    from clusterfl.config.methods import find_method, named_settings
    from clusterfl.methods.presets import find

    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        method, at, preset = named_settings(name)[0].partition("@")
        find_method(method, "--methods")
        if at:
            find(method, preset, "--methods preset")
    return list(dict.fromkeys([*(n for n in ALWAYS if n not in asked), *asked]))


def parse_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if span is None or (span[2] and int(span[2]) < int(span[1])):
            raise ConfigError(f"--seeds {text!r} should be whole numbers such as 0-2 or 0,3,5")
        seeds += range(int(span[1]), int(span[2] or span[1]) + 1)
    return list(dict.fromkeys(seeds))
