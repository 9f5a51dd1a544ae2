"""The papers' tables, run again: experiments, their cells, what came out, and the page that compares.

``experiments/<paper>/<table>.toml`` holds a base config, rows (methods), settings (columns), what a scale
changes, and the paper's own figures. A *cell* is one row in one setting with one seed: one run, and one small
JSON in ``experiments/<paper>/results``. docs/reproducing.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import clusterfl
from clusterfl import tables
from clusterfl.config import Config, merged, read_toml
from clusterfl.data.population import Population
from clusterfl.errors import ConfigError
from clusterfl.loop import Outcome
from clusterfl.metrics import Accuracy, top_rounds
from clusterfl.results import plain, summary, write
from clusterfl.tables import Table

SCALES = ("full", "laptop", "smoke")
COUNTED = ("full", "laptop")  # smoke only shows that it runs
CARRIED_OUT = ("device", "engine", "checkpoint", "methods")  # how, not what: they leave a result valid


@dataclass(frozen=True)
class Metric:
    """How a figure is called, its unit, and what may be missing to the paper's."""

    label: str
    factor: float = 100.0  # accuracies are in points
    within: float | None = 1.5  # ours counts as reproduced from the paper's minus this on


METRICS = {
    "accuracy_mean": Metric("accuracy"),
    "accuracy_weighted": Metric("accuracy, by size"),
    "accuracy_top5_rounds": Metric("best 5 rounds"),
    "accuracy_top5_weighted": Metric("best 5 rounds, by size"),
    "accuracy_bottom5": Metric("worst 5"),
    "accuracy_std": Metric("between clients", within=None),
    "global_accuracy": Metric("global"),
    "global_weighted": Metric("global, by size"),
    "intra_accuracy": Metric("intra"),
    "inter_accuracy": Metric("inter"),
    "unseen_accuracy": Metric("unseen clients"),
    "ari": Metric("ARI", 1.0, 0.05),
    "nmi": Metric("NMI", 1.0, 0.05),
    "clusters_found": Metric("clusters", 1.0, None),
    "bytes_up": Metric("MB up", 1e-6, None),
    "bytes_down": Metric("MB down", 1e-6, None),
    "f1_micro": Metric("micro-F1"),
    "f1_macro": Metric("macro-F1"),
}


# -- experiments -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A column: what it changes in the base config, always and at some scales."""

    name: str
    config: Table = field(default_factory=dict)
    scale: dict[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method as the paper names it, what it changes, and the paper's figures per setting, as ``metrics``."""

    name: str
    method: Table
    config: Table = field(default_factory=dict)
    scale: dict[str, Table] = field(default_factory=dict)
    paper: dict[str, tuple[float | Literal["-"], ...]] = field(default_factory=dict)

    def figures(self, setting: str, metrics: Sequence[str]) -> dict[str, float]:
        """What the paper has, by metric; the last ones may be left out."""
        return {m: v for m, v in zip(metrics, self.paper.get(setting, ()), strict=False) if v != "-"}


@dataclass(frozen=True)
class Experiment:
    """One file: a table of a paper, or a figure."""

    folder: Path
    table: str
    citation: str
    title: str
    kind: Literal["table", "figure"] = "table"
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    uses: str | None = None  # a figure of another experiment's results
    report: str | None = None  # what draws it, as module:function
    base: Table = field(default_factory=dict)
    scale: dict[str, Table] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    rows: tuple[Row, ...] = ()

    @property
    def paper(self) -> str:
        return self.folder.name

    @property
    def name(self) -> str:
        return f"{self.paper}.{self.table}"

    def cells(self, scale: str, seeds: Iterable[int]) -> Iterator[Cell]:
        """Seed by seed, so that whole tables come first; a table has cells where the paper has figures."""
        for seed in seeds:
            for setting in self.settings:
                for row in self.rows:
                    if self.kind == "figure" or setting.name in row.paper:
                        yield Cell(self, row, setting, seed, scale)


@dataclass(frozen=True)
class Cell:
    """One run."""

    experiment: Experiment
    row: Row
    setting: Setting
    seed: int
    scale: str

    @property
    def label(self) -> str:
        return f"{self.experiment.name}, {self.row.name}, {self.setting.name}, seed {self.seed}"

    @property
    def path(self) -> Path:
        parts = [self.experiment.table, slug(self.row.name), slug(self.setting.name), str(self.seed)]
        name = "-".join(parts if self.scale == "full" else [*parts, self.scale])
        return self.experiment.folder / "results" / f"{name}.json"

    def config(self) -> Config:
        """The base, changed by the row, the setting, the scale, and the scale's changes to row and setting."""
        e, row, setting = self.experiment, self.row, self.setting
        table = e.base
        for changes in (
            {"method": row.method},
            row.config,
            setting.config,
            *(part.scale.get(self.scale, {}) for part in (e, row, setting)),
            {"seed": self.seed},
        ):
            table = merged(table, changes)
        return Config.parse(table)


def load(path: Path) -> Experiment:
    """The experiment of a file; ConfigError, in one sentence, for what is wrong in it."""
    try:
        given = read_toml(path)
        settings = tuple(_parts(Setting, given.pop("settings", []), "settings"))
        rows = tuple(_parts(Row, given.pop("rows", []), "rows"))
        own = {"folder": path.parent, "table": path.stem, "settings": settings, "rows": rows}
        found = tables.read(Experiment, given, "", given=own)
        for name in found.metrics:
            tables.choice("metrics", name, METRICS, "a known metric")
        for scales in (found.scale, *(s.scale for s in settings), *(r.scale for r in rows)):
            for scale in scales:
                tables.choice("scale", scale, SCALES, "a known scale")
        for row in rows:
            for name, figures in row.paper.items():
                tables.choice(f"rows.{row.name}.paper", name, [s.name for s in settings], "the name of a setting")
                if len(figures) > len(found.metrics):
                    raise ConfigError(f"rows.{row.name}.paper.{name}={list(figures)} should be one figure per metric")
    except ConfigError as error:
        raise ConfigError(f"{path.parent.name}/{path.name}: {error}") from error
    return found


def _parts(cls: type[tables.T], given: Any, path: str) -> Iterator[tables.T]:
    seen: set[str] = set()
    for table in given if isinstance(given, list) else [given]:
        part = tables.read(cls, tables.as_table(table, path), path)
        name = slug(part.name)  # type: ignore[attr-defined]
        if name in seen:
            raise ConfigError(f"{path}.name={name!r} should be there once")
        seen.add(name)
        yield part


def load_all(folder: Path) -> list[Experiment]:
    """Every experiment below a folder, by paper and table."""
    return [load(path) for path in sorted(folder.glob("*/*.toml"), key=_natural)]


def _natural(path: Path) -> list[Any]:
    """table2 before table10."""
    return [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", f"{path.parent.name}.{path.stem}")]


def select(experiments: Sequence[Experiment], what: str) -> list[Experiment]:
    """``paper.table``, or everything that begins so: ``paper``, or ``paper.table2`` for table2-mnist and others."""
    exact = [e for e in experiments if e.name == what]
    some = exact or [e for e in experiments if e.name.startswith((f"{what}.", f"{what}-"))]
    if not some:
        tables.choice("experiment", what, [e.name for e in experiments], "a known one (see --list)")
    return some


def slug(text: str) -> str:
    """A name as part of a file's: MD-ICFL-1 is md-icfl-1, R=0.5 is r-0.5."""
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold().replace("+", " plus ")).strip("-")


# -- results ---------------------------------------------------------------------------------------------


def decisive(config: Config) -> Table:
    """What a result depends on: the whole config but where the data lies and how the run is carried out."""
    table = {k: v for k, v in config.table().items() if k not in CARRIED_OUT}
    table["data"] = {k: v for k, v in table["data"].items() if k != "root"}
    found: Table = json.loads(json.dumps(table))
    return found


def digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True).encode()).hexdigest()


def result_of(cell: Cell, config: Config, population: Population, outcome: Outcome) -> Table:
    """The JSON of a finished cell. ``config`` is the resolved one, which names the engine."""
    told = summary(config, population, outcome)
    sizes = population.train.sizes[: population.clients]
    measured = [r for r in outcome.records[1:] if r.measured]
    told["accuracy_top5_weighted"] = top_rounds([Accuracy.of(r.accuracy, sizes).weighted for r in measured])
    asked = cell.config()
    return plain(
        {
            "paper": cell.experiment.paper,
            "table": cell.experiment.table,
            "row": cell.row.name,
            "setting": cell.setting.name,
            "seed": cell.seed,
            "scale": cell.scale,
            "digest": digest(asked),
            "metrics": {name: told[name] for name in METRICS if name in told},
            "curve": [[r.round, round(float(r.accuracy.nanmean()), 4)] for r in measured],
            "seconds": round(told["seconds"], 1),
            "engine": config.engine.name,
            "data_sha256": told["data_sha256"],
            "version": clusterfl.__version__,
            "commit": commit(),
            "config": decisive(asked),
        }
    )


def write_result(cell: Cell, result: Table) -> None:
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    write(cell.path, (json.dumps(result, indent=1) + "\n").encode())


class Results:
    """What a paper's folder holds now. A run may stand in several tables: one with the same digest is the same.

    Digests are of today: an option that is new since a result was written counts as its default.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Table] = {}
        for path in sorted((folder / "results").glob("*.json")):
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                kept = {k: found[k] for k in ("seed", "metrics", "seconds")}
                self.files[path.name] = {**kept, "digest": digest(Config.parse(found["config"]))}
            except (ConfigError, OSError, ValueError, KeyError, TypeError):
                continue  # damaged, or of another time: run again
        self.by_digest = {found["digest"]: found for found in self.files.values()}

    @property
    def seeds(self) -> list[int]:
        return sorted({found["seed"] for found in self.files.values()})

    def of(self, cell: Cell) -> Table | None:
        """The cell's result, unless there is none or the cell means something else by now."""
        try:
            wanted = digest(cell.config())
        except ConfigError:
            return None
        own = self.files.get(cell.path.name)
        return own if own is not None and own["digest"] == wanted else self.by_digest.get(wanted)


def commit() -> str | None:
    """The commit of the checkout that this code runs from; None outside of one."""
    package = Path(clusterfl.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.resolve().parent:
            return None  # installed below somebody else's checkout
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


# -- ours beside the paper's -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One number of the paper and ours, the mean over seeds, in the paper's unit."""

    row: str
    setting: str
    metric: str
    paper: float | None
    ours: tuple[float, ...] = ()  # one per seed
    void: int = 0  # seeds whose run has no such number, as there is no accuracy abroad with one cluster

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def std(self) -> float:
        return statistics.stdev(self.ours) if len(self.ours) > 1 else 0.0

    @property
    def reproduced(self) -> bool | None:
        """Ours is at least the paper's minus 1.5 points (ARI: 0.05); None where there is nothing to compare."""
        within = METRICS[self.metric].within
        if self.paper is None or within is None or not (self.ours or self.void):
            return None
        return self.mean is not None and not self.void and self.mean >= self.paper - within - 1e-9

    @property
    def text(self) -> str:
        ours = "–" if self.mean is None else f"{self.mean:.2f}"
        spread = f" ± {self.std:.2f}" if len(self.ours) > 1 else ""
        spread += f" ({self.void} without)" if self.void else ""
        return f"{ours}{spread} / {'–' if self.paper is None else f'{self.paper:g}'}{' ✓' if self.reproduced else ''}"


@dataclass(frozen=True)
class Comparison:
    """An experiment at one scale: all its figures, and the results behind them."""

    experiment: Experiment
    scale: str
    figures: tuple[Figure, ...]
    results: tuple[Table, ...]

    @property
    def reproduced(self) -> int:
        return sum(f.reproduced is True for f in self.figures)

    @property
    def compared(self) -> int:
        return sum(f.reproduced is not None for f in self.figures)

    @property
    def seeds(self) -> list[int]:
        return sorted({r["seed"] for r in self.results})

    @property
    def count(self) -> str:
        """How many of how many, over how many seeds, in words."""
        runs = sorted({len(f.ours) + f.void for f in self.figures} - {0})
        seeds = " to ".join(str(n) for n in dict.fromkeys(runs[:1] + runs[-1:])) or "0"
        seeds += " seed" if seeds == "1" else " seeds"
        return f"{self.reproduced} of {self.compared} figures reproduced, {seeds}" if self.compared else seeds

    @property
    def seconds(self) -> float:
        return float(sum(r["seconds"] for r in self.results))

    @property
    def command(self) -> str:
        seeds = f" --seeds {','.join(map(str, self.seeds))}" if self.seeds else ""
        return f"clusterfl reproduce {self.experiment.name} --scale {self.scale}{seeds}"

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(setting, metric) of every column with a number in it."""
        full = {(f.setting, f.metric) for f in self.figures if f.ours or f.void or f.paper is not None}
        return [(s.name, m) for s in self.experiment.settings for m in self.experiment.metrics if (s.name, m) in full]

    def grid(self) -> list[list[str]]:
        """A head and one line per row, as text."""
        texts = {(f.row, f.setting, f.metric): f.text for f in self.figures if f.ours or f.void or f.paper is not None}
        alone = len({setting for setting, _ in self.columns}) == 1
        head = ["", *(("" if alone else f"{s}: ") + METRICS[m].label for s, m in self.columns)]
        rows = [r.name for r in self.experiment.rows]
        return [head, *([name, *(texts.get((name, *column), "") for column in self.columns)] for name in rows)]

    def json(self) -> Table:
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "scale": self.scale,
            "seeds": self.seeds,
            "reproduced": self.reproduced,
            "compared": self.compared,
            "seconds": self.seconds,
            "figures": [
                {
                    "row": f.row,
                    "setting": f.setting,
                    "metric": f.metric,
                    "paper": f.paper,
                    "ours": f.mean,
                    "std": f.std if f.ours else None,
                    "seeds": len(f.ours),
                    "reproduced": f.reproduced,
                }
                for f in self.figures
            ],
        }


def compare(experiment: Experiment, scale: str, results: Results | None = None) -> Comparison:
    """The results on disk, of whichever seeds, beside the paper's figures."""
    results = results or Results(experiment.folder)
    found: dict[tuple[str, str], list[Table]] = {}
    for cell in experiment.cells(scale, results.seeds):
        if (result := results.of(cell)) is not None:
            found.setdefault((cell.row.name, cell.setting.name), []).append(result)
    figures = []
    for cell in experiment.cells(scale, [0]):
        key = cell.row.name, cell.setting.name
        paper = cell.row.figures(cell.setting.name, experiment.metrics)
        for metric in experiment.metrics:
            ours = [r["metrics"][metric] for r in found.get(key, []) if metric in r["metrics"]]
            known = tuple(METRICS[metric].factor * v for v in ours if v is not None)
            figures.append(Figure(*key, metric, paper.get(metric), known, len(ours) - len(known)))
    return Comparison(experiment, scale, tuple(figures), tuple(r for rs in found.values() for r in rs))


# -- the page --------------------------------------------------------------------------------------------

HEAD = """# Reproduction

Our results beside the papers'. This page is written by `clusterfl reproduce`; [reproducing](reproducing.md) says
how to run it, what the scales are and how to read the tables.

A cell is *ours / the paper's*: the mean over seeds ± its standard deviation between seeds. ✓ marks a figure that
is reproduced: ours is at least the paper's minus 1.5 points (ARI: minus 0.05). At `full` scale the config is the
paper's; at `laptop` scale it is smaller, and its figures can only show the order of methods.
"""


def page(experiments: Sequence[Experiment]) -> str:
    """docs/reproduction.md: a summary, then every table that has results and every drawing."""
    results = {e.folder: Results(e.folder) for e in experiments}
    compared = [[c for scale in COUNTED if (c := compare(e, scale, results[e.folder])).results] for e in experiments]
    parts = [HEAD, *_totals([c for found in compared for c in found]), _summary(experiments, compared)]
    for folder in dict.fromkeys(e.folder for e in experiments):
        mine = [(e, found) for e, found in zip(experiments, compared, strict=True) if e.folder == folder]
        parts.append(f"## {mine[0][0].citation}\n")
        notes = folder / "notes.md"
        if notes.exists():
            parts.append(notes.read_text(encoding="utf-8").strip() + "\n")
        parts += [_section(e, found) for e, found in mine if found or not e.rows]
    return "\n".join(parts)


def _totals(compared: Sequence[Comparison]) -> Iterator[str]:
    for scale in COUNTED:
        some = [c for c in compared if c.scale == scale and c.compared]
        if some:
            done, of = sum(c.reproduced for c in some), sum(c.compared for c in some)
            yield f"**At {scale} scale {done} of {of} figures are reproduced.**\n"


def _summary(experiments: Sequence[Experiment], compared: Sequence[Sequence[Comparison]]) -> str:
    lines = [["Experiment", "What", "Scale", "Reproduced", "In the paper", "Runs", "Hours"]]
    for e, found in zip(experiments, compared, strict=True):
        what = f"[{e.title}](#{_anchor(e)})" if found or not e.rows else e.title
        lines += [
            [
                f"`{e.name}`",
                what,
                c.scale,
                f"{c.reproduced} of {c.compared}" if c.compared else "–",
                str(_printed(e)),
                str(len(c.results)),
                f"{c.seconds / 3600:.1f}",
            ]
            for c in found
        ] or [[f"`{e.name}`", what, "–", "not run" if e.rows else "a drawing", str(_printed(e)), "–", "–"]]
    return markdown(lines, left=3)


def _printed(e: Experiment) -> int:
    return sum(len(row.figures(setting.name, e.metrics)) for row in e.rows for setting in e.settings)


def _section(e: Experiment, found: Sequence[Comparison]) -> str:
    parts = [f"### {e.table}: {e.title}\n"]
    for c in found:
        parts += [f"{c.scale.capitalize()} scale: {c.count}.\n", markdown(c.grid())]
        parts.append(f"```\n{c.command}\n```\n")
    if e.uses:
        parts.append(f"Drawn from the results of `{e.uses}`.\n")
    if e.report:
        parts.append(f"Drawn by `{e.report}`.\n")
    if e.notes:
        parts.append("".join(f"- {note}\n" for note in e.notes))
    return "\n".join(parts)


def _anchor(e: Experiment) -> str:
    """The heading's name in GitHub's Markdown."""
    return re.sub(r"[^\w\- ]", "", f"{e.table}: {e.title}".casefold()).replace(" ", "-")


def markdown(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table, its first columns to the left and numbers to the right."""
    rule = ["---" if j < left else "---:" for j in range(len(lines[0]))]
    return "".join("| " + " | ".join(line) + " |\n" for line in [lines[0], rule, *lines[1:]])


def page_path(folder: Path) -> Path:
    """docs/ beside the experiments, or their own folder where there is none."""
    docs = folder.resolve().parent / "docs"
    return (docs if docs.is_dir() else folder) / "reproduction.md"
