"""``clusterfl compare``: several methods on one scenario, over several seeds, in one table."""

from __future__ import annotations

import csv
import io
import json as jsonlib
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Force,
    Json,
    Out,
    Quiet,
    Set,
    Verbose,
    check_out,
    picture,
    same_run,
    say_json,
    set_logging,
    simulate,
)
from clusterfl.errors import ConfigError

if TYPE_CHECKING:
    from clusterfl.config import Config

ALWAYS = ("local", "fedavg")  # a table without them says little
FIGURES = (
    "accuracy_mean",
    "accuracy_weighted",
    "accuracy_std",
    "accuracy_bottom5",
    "accuracy_top5_rounds",
    "f1_micro",
    "f1_macro",
    "ari",
    "nmi",
    "clusters_found",
    "settled",
    "intra_accuracy",
    "inter_accuracy",
    "unseen_accuracy",
    "accuracy_honest",
    "accuracy_worst_cluster",
    "ari_honest",
    "rejected",
    "bytes_up",
    "bytes_down",
    "seconds",
)
REACHED = "bytes_to_accuracy"  # one figure more, with --reach


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B", help="Methods; local and fedavg are always there.")
    ] = "local,fedavg,ifca",
    seeds: Annotated[str, typer.Option("--seeds", metavar="0-2", help="Seeds, as 0-2 or 0,3,5.")] = "0-2",
    reach: Annotated[
        float | None,
        typer.Option("--reach", metavar="0.9", help="Also the traffic until the mean accuracy first was this high."),
    ] = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    out: Out = None,
    force: Force = False,
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
      clusterfl compare scenario.toml --methods local,fedavg,ifca --seeds 0-4 --out runs/table
      clusterfl compare scenario.toml --methods ifca,md-icfl --reach 0.9
    """
    set_logging(verbose, quiet)
    from clusterfl import tables
    from clusterfl.config import Config
    from clusterfl.progress import display
    from clusterfl.results import write, write_run

    if reach is not None and not 0.0 < reach <= 1.0:
        raise ConfigError(f"--reach {reach:g} should be above 0 and at most 1")
    base = Config.load(config, set_, data_root=data_root)
    names, numbers = parse_methods(methods), parse_seeds(seeds)
    configs = {name: base.with_method(name) for name in names}  # all of them are checked before any starts
    folder = out or Path("runs") / f"compare-{config.stem if config else 'demo'}"
    check_out(folder, base.toml(), force)

    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    pictures: dict[str, list[str]] = {}
    with display(quiet) as shown:
        for seed in numbers:
            population = base.with_seed(seed).population()  # the same clients for every method
            for name in names:
                one, place = configs[name].with_seed(seed), folder / "runs" / f"{name}-seed{seed}"
                found = None if force else finished(place, one)
                if found is None:
                    built = one.build(population)
                    outcome = simulate(built, shown, f"{name}, seed {seed}")
                    found = write_run(place, built.config, population, outcome)
                if reach is not None:
                    found[REACHED] = spent_until(reach, place)
                summaries[name].append(found)
                if name not in pictures and one.method.clustered:
                    pictures[name] = picture(found, population)
    result = {
        "data": summaries[names[0]][0]["data"],
        "rounds": base.rounds,
        "seeds": numbers,
        "attack": tables.write(base.attack) if base.attack.on else None,
        "reach": reach,
        "methods": [row(name, summaries[name], figures(reach)) for name in names],
    }
    write(folder / "config.toml", base.toml().encode())
    write(folder / "compare.json", (jsonlib.dumps(result, indent=2) + "\n").encode())
    write(folder / "table.csv", as_csv(result).encode())
    write(folder / "table.md", as_markdown(result).encode())
    if json:
        say_json(result)
        return
    typer.echo(as_text(result))
    for name, lines in pictures.items():
        typer.echo(f"\n{name}, seed {numbers[0]}: clients by cluster, a letter for the true one")
        for line in lines:
            typer.echo(f"  {line}")
    typer.echo(f"\nwritten to {folder}")


def parse_methods(text: str) -> list[str]:
    """Names in the order given, Local and FedAvg first where they are missing."""
    from clusterfl.methods import METHODS
    from clusterfl.tables import choice

    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        choice("--methods", name, METHODS, "known methods")
    return list(dict.fromkeys([*(n for n in ALWAYS if n not in asked), *asked]))


def parse_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if span is None or (span[2] and int(span[2]) < int(span[1])):
            raise ConfigError(f"--seeds {text!r} should be whole numbers such as 0-2 or 0,3,5")
        seeds += range(int(span[1]), int(span[2] or span[1]) + 1)
    return list(dict.fromkeys(seeds))


def finished(folder: Path, config: Config) -> dict[str, Any] | None:
    """The summary of a run that an earlier, interrupted comparison finished here."""
    try:
        resolved = config.model_copy(update={"data": config.data.resolved()})
        if not same_run((folder / "config.toml").read_text(encoding="utf-8"), resolved.toml()):
            return None
        found: dict[str, Any] = jsonlib.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if {*FIGURES, "seed", "k", "assignments"} <= found.keys() else None


def spent_until(level: float, folder: Path) -> int | None:
    """Bytes up and down until the mean accuracy over clients first was at least ``level``; None: never."""
    from clusterfl.metrics import bytes_to_accuracy

    rounds = [jsonlib.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    means = [math.nan if r["accuracy_mean"] is None else r["accuracy_mean"] for r in rounds]
    return bytes_to_accuracy(level, means, [r["bytes_up"] + r["bytes_down"] for r in rounds])


def figures(reach: float | None) -> tuple[str, ...]:
    return FIGURES if reach is None else (*FIGURES, REACHED)


def row(name: str, runs: list[dict[str, Any]], names: Sequence[str] = FIGURES) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every figure, null where no run has it."""
    found: dict[str, Any] = {}
    for figure in names:
        values = [run[figure] for run in runs if run[figure] is not None]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[figure] = {"mean": statistics.fmean(values), "std": spread} if values else None
    keep = ("seed", "k", *names, "assignments")
    return {"method": name, **found, "runs": [{k: run[k] for k in keep} for run in runs]}


HEAD = ("method", "accuracy", "worst 5", "ARI", "clusters", "settled", "unseen", "MB up", "MB down", "seconds")
ATTACKED = ("method", "honest", "worst cluster", "ARI honest", "clusters", "rejected", "MB up", "MB down", "seconds")


def head(result: dict[str, Any]) -> list[str]:
    names = list(ATTACKED if result["attack"] else HEAD)
    return names if result["reach"] is None else [*names, f"MB to {100 * result['reach']:g} %"]


def cells(entry: dict[str, Any], result: dict[str, Any]) -> list[str]:
    line = _cells(entry, attacked=bool(result["attack"]))
    return line if result["reach"] is None else [*line, reached(entry)]


def reached(entry: dict[str, Any]) -> str:
    """The traffic of the seeds that got there, and how many those are where it is not all."""
    got, there = entry[REACHED], sum(run[REACHED] is not None for run in entry["runs"])
    if got is None:
        return "-"
    some = "" if there == len(entry["runs"]) else f" ({there} of {len(entry['runs'])})"
    return f"{got['mean'] * 1e-6:.2f} ± {got['std'] * 1e-6:.2f}{some}"


def _cells(entry: dict[str, Any], *, attacked: bool) -> list[str]:
    def pair(figure: str, scale: float = 1.0, digits: int = 2) -> str:
        got = entry[figure]
        return "-" if got is None else f"{got['mean'] * scale:.{digits}f} ± {got['std'] * scale:.{digits}f}"

    def mean(figure: str, scale: float = 1.0) -> str:
        return f"{entry[figure]['mean'] * scale:.2f}"

    if attacked:
        return [
            entry["method"],
            pair("accuracy_honest", 100),
            pair("accuracy_worst_cluster", 100),
            pair("ari_honest"),
            pair("clusters_found", digits=1),
            pair("rejected", digits=1),
            mean("bytes_up", 1e-6),
            mean("bytes_down", 1e-6),
            pair("seconds", digits=1),
        ]
    return [
        entry["method"],
        pair("accuracy_mean", 100),
        pair("accuracy_bottom5", 100),
        pair("ari"),
        pair("clusters_found", digits=1),
        pair("settled", digits=1),
        pair("unseen_accuracy", 100),
        mean("bytes_up", 1e-6),
        mean("bytes_down", 1e-6),
        pair("seconds", digits=1),
    ]


def as_text(result: dict[str, Any]) -> str:
    """An aligned table; the same on a terminal and in a file."""
    lines = [head(result), *(cells(entry, result) for entry in result["methods"])]
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    rule = "  ".join("-" * w for w in widths)
    body = [
        "  ".join(
            cell.ljust(w) if j == 0 else cell.rjust(w) for j, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    title = f"{result['data']}: {result['rounds']} rounds, mean ± standard deviation over {len(result['seeds'])} seeds"
    if result["attack"]:
        attack = result["attack"]
        title += (
            f"\n{attack['kind']} by {attack['share']:.0%} of the clients ({attack['where']}); figures of the others"
        )
    return "\n".join([title, "", body[0], rule, *body[1:]])


def as_markdown(result: dict[str, Any]) -> str:
    names = head(result)
    rows = [cells(entry, result) for entry in result["methods"]]
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def as_csv(result: dict[str, Any]) -> str:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = figures(result["reach"])
    out.writerow(["method", *(f"{figure}_{part}" for figure in names for part in ("mean", "std"))])
    for entry in result["methods"]:
        pairs = [entry[figure] or {"mean": "", "std": ""} for figure in names]
        out.writerow([entry["method"], *(pair[part] for pair in pairs for part in ("mean", "std"))])
    return text.getvalue()
