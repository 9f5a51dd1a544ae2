"""An experiment as its file describes it: a base config, rows, settings, scales, and the paper's figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clusterfl.config import Config, tables
from clusterfl.config.errors import choice
from clusterfl.config.overrides import merged, read_toml
from clusterfl.config.tables import Table
from clusterfl.errors import ConfigError

SCALES = ("full", "laptop", "smoke")
COUNTED = ("full", "laptop")  # smoke only shows that it runs


@dataclass(frozen=True)
class Metric:
    """How a figure is called, its unit, and how far from the paper's it may be."""

    label: str
    factor: float = 100.0  # accuracies are in points
    within: float | None = 1.5  # from the paper's, to agree with it; None: no figure to compare


METRICS = {
    "accuracy_mean": Metric("accuracy"),
    "accuracy_weighted": Metric("accuracy, by size"),
    "accuracy_top5_rounds": Metric("best 5 rounds"),
    "accuracy_top5_weighted": Metric("best 5 rounds, by size"),
    "accuracy_bottom5": Metric("worst 5"),
    "accuracy_bottom5_rounds": Metric("worst 5, best rounds"),
    "accuracy_std": Metric("between clients", within=None),
    "global_accuracy": Metric("global"),
    "global_weighted": Metric("global, by size"),
    "intra_accuracy": Metric("intra"),
    "inter_accuracy": Metric("inter"),
    "unseen_accuracy": Metric("unseen clients"),
    "ari": Metric("ARI", 1.0, 0.05),
    "nmi": Metric("NMI", 1.0, 0.05),
    "clusters_found": Metric("clusters", 1.0, None),
    "settled": Metric("settled in round", 1.0, None),
    "bytes_up": Metric("MB up", 1e-6, None),
    "bytes_down": Metric("MB down", 1e-6, None),
    "f1_micro": Metric("micro-F1"),
    "f1_macro": Metric("macro-F1"),
}


@dataclass(frozen=True)
class Setting:
    """A column: what it changes in the base config, always and at some scales.

    A setting ``of`` another is the same of the paper's in another reading, as a row may be.
    """

    name: str
    config: Table = field(default_factory=dict)
    scale: dict[str, Table] = field(default_factory=dict)
    of: str | None = None


@dataclass(frozen=True)
class Row:
    """A method as the paper names it, what it changes, and the paper's figures per setting, as ``metrics``.

    A row ``of`` another is the same of the paper's in another reading: it has that row's figures, in ``settings`` if
    some are named, and they are not counted twice.
    """

    name: str
    method: Table
    config: Table = field(default_factory=dict)
    scale: dict[str, Table] = field(default_factory=dict)
    paper: dict[str, tuple[float | Literal["-"], ...]] = field(default_factory=dict)
    spread: dict[str, tuple[float | Literal["-"], ...]] = field(default_factory=dict)  # the paper's ±, alike
    of: str | None = None
    settings: tuple[str, ...] = ()

    def figures(self, setting: str, metrics: Sequence[str]) -> dict[str, float]:
        """What the paper has, by metric; the last ones may be left out."""
        return {m: v for m, v in zip(metrics, self.paper.get(setting, ()), strict=False) if v != "-"}

    def spreads(self, setting: str, metrics: Sequence[str]) -> dict[str, float]:
        """The paper's ± of these."""
        return {m: v for m, v in zip(metrics, self.spread.get(setting, ()), strict=False) if v != "-"}


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
    shows: tuple[str, ...] = ()  # the settings that it shows; none: all
    lines: tuple[str, ...] = ()  # the rows that it shows; none: all
    needs: str | None = None  # what a result must hold to be shown: inter_curve
    not_run: Literal["time", "data", "data and size"] = "time"  # why figures are not run at full scale
    spread_of: Literal["seeds", "models"] = "seeds"  # between what the paper's ± is
    letter: dict[str, Table] = field(default_factory=dict)  # what the paper says of a method here, over its preset
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
        rows = tuple(_readings(tuple(_parts(Row, given.pop("rows", []), "rows")), settings))
        own = {"folder": path.parent, "table": path.stem, "settings": settings, "rows": rows}
        found = tables.read(Experiment, given, "", given=own)
        for name in found.metrics:
            choice("metrics", name, METRICS, "a known metric")
        for scales in (found.scale, *(s.scale for s in settings), *(r.scale for r in rows)):
            for scale in scales:
                choice("scale", scale, SCALES, "a known scale")
        for row in rows:
            for name, figures in row.paper.items():
                choice(f"rows.{row.name}.paper", name, [s.name for s in settings], "the name of a setting")
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


def _readings(rows: Sequence[Row], settings: Sequence[Setting]) -> Iterator[Row]:
    """Rows and settings of others with the figures of these."""
    names = [s.name for s in settings]
    columns = {s.name: choice(f"settings.{s.name}.of", s.of, names, "the name of a setting") for s in settings if s.of}
    rows = [replace(r, paper=r.paper | {s: r.paper[of] for s, of in columns.items() if of in r.paper}) for r in rows]
    mains = {row.name: row for row in rows if row.of is None}
    for row in rows:
        if row.of is None:
            if row.settings:
                raise ConfigError(f"rows.{row.name}.settings should be given with of alone: the name of another row")
            yield row
            continue
        main = mains[choice(f"rows.{row.name}.of", row.of, mains, "the name of a row")]
        for name in row.settings:
            choice(f"rows.{row.name}.settings", name, names, "the name of a setting")
        if row.paper:
            raise ConfigError(f"rows.{row.name}.paper should be left out: its figures are those of {main.name}")
        kept = {s: figures for s, figures in main.paper.items() if not row.settings or s in row.settings}
        yield replace(row, paper=kept, spread=main.spread, scale=row.scale or main.scale)


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
        choice("experiment", what, [e.name for e in experiments], "a known one (see --list)")
    return some


def slug(text: str) -> str:
    """A name as part of a file's: MD-ICFL-1 is md-icfl-1, R=0.5 is r-0.5."""
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold().replace("+", " plus ")).strip("-")
