"""Ours beside the paper's, figure by figure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from clusterfl.config.tables import Table
from clusterfl.reproduce.spec import METRICS, Cell, Experiment, Row, Setting
from clusterfl.reproduce.store import Results

Verdict = Literal["within", "above", "below", "void"]
SPREAD = "accuracy_std"  # the metric that is a spread itself, between clients
WITHIN = 1.5  # points, from the paper's spread
MARKS: dict[Verdict, str] = {"within": "✓", "above": "▲", "below": "▽", "void": "∅"}


@dataclass(frozen=True)
class Figure:
    """One number of the paper and ours, the mean over seeds, in the paper's unit."""

    row: str
    setting: str
    metric: str
    paper: float | None
    ours: tuple[float, ...] = ()  # one per seed
    void: int = 0  # seeds whose run has no such number, as there is no accuracy abroad with one cluster
    spread: float | None = None  # the paper's ±
    spread_of: str = "seeds"  # between what that is
    reading: bool = False  # of the paper's figure in another reading, which is counted apart

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def std(self) -> float:
        return statistics.stdev(self.ours) if len(self.ours) > 1 else 0.0

    @property
    def verdict(self) -> Verdict | None:
        """Within 1.5 points of the paper's (ARI: 0.05), above or below; void where a seed has no such number; None
        where there is nothing to compare."""
        within = METRICS[self.metric].within
        if self.paper is None or within is None or not (self.ours or self.void):
            return None
        if self.mean is None or self.void:
            return "void"
        off = self.mean - self.paper
        return "within" if abs(off) <= within + 1e-9 else "above" if off > 0 else "below"

    @property
    def spreads(self) -> tuple[float, float] | None:
        """Ours and the paper's: between clients where the paper prints that as a figure, else between seeds."""
        if self.metric == SPREAD:
            return None if self.mean is None or self.paper is None else (self.mean, self.paper)
        alike = self.spread is not None and self.spread_of == "seeds" and len(self.ours) > 1
        return (self.std, self.spread or 0.0) if alike else None

    @property
    def text(self) -> str:
        ours = "–" if self.mean is None else f"{self.mean:.2f}"
        ours += f" ± {self.std:.2f}" if len(self.ours) > 1 else ""
        ours += f" ({self.void} without)" if self.void else ""
        theirs = "–" if self.paper is None else f"{self.paper:g}"
        theirs += "" if self.spread is None else f" ± {self.spread:g}"
        return f"{ours} / {theirs}" + (f" {MARKS[self.verdict]}" if self.verdict else "")


@dataclass(frozen=True)
class Comparison:
    """An experiment at one scale: all its figures, and the results behind them."""

    experiment: Experiment
    scale: str
    figures: tuple[Figure, ...]
    results: tuple[Table, ...]

    @property
    def verdicts(self) -> Counter[str]:
        """How many of the paper's figures were run, and what came out; other readings apart."""
        return Counter(f.verdict for f in self.figures if f.verdict and not f.reading)

    @property
    def readings(self) -> Counter[str]:
        """The same of the figures that were run in another reading."""
        return Counter(f.verdict for f in self.figures if f.verdict and f.reading)

    def spread(self, clients: bool) -> Counter[str]:
        """How ours compare with the papers' standard deviations, of clients or of seeds; other readings apart."""
        pairs = [f.spreads for f in self.figures if not f.reading and (f.metric == SPREAD) == clients]
        return Counter(
            "within" if abs(ours - theirs) <= WITHIN + 1e-9 else "wider" if ours > theirs else "narrower"
            for ours, theirs in filter(None, pairs)
        )

    @property
    def seeds(self) -> list[int]:
        return sorted({r["seed"] for r in self.results})

    @property
    def places(self) -> list[tuple[str, str]]:
        """(row, setting) of every cell that was run."""
        return list(dict.fromkeys((r["row"], r["setting"]) for r in self.results))

    @property
    def count(self) -> str:
        """How many of the paper's figures, and over how many seeds, in words."""
        runs = sorted({len(f.ours) + f.void for f in self.figures} - {0})
        seeds = " to ".join(str(n) for n in dict.fromkeys(runs[:1] + runs[-1:])) or "0"
        seeds += " seed" if seeds == "1" else " seeds"
        parts = [f"{in_words(self.verdicts)}"] if self.verdicts else []
        parts += [f"in other readings {in_words(self.readings)}"] if self.readings else []
        return "; ".join([*parts, seeds])

    @property
    def orders(self) -> dict[tuple[str, str], float]:
        """How alike the order of methods is to the paper's: Spearman's rank correlation of every column of at least
        four rows that differ."""
        from scipy.stats import spearmanr

        found = {}
        for column in self.columns:
            mine = [f for f in self.figures if (f.setting, f.metric) == column and f.verdict and not f.reading]
            pairs = [(f.mean, f.paper) for f in mine if f.mean is not None]
            if len(pairs) >= 4 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
                found[column] = float(spearmanr(pairs).statistic)
        return found

    @property
    def seconds(self) -> float:
        return float(sum(r["seconds"] for r in self.results))

    @property
    def command(self) -> str:
        seeds = f" --seeds {','.join(map(str, self.seeds))}" if self.seeds else ""
        return f"clusterfl reproduce {self.experiment.name} --scale {self.scale}{seeds}"

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(setting, metric) of every column with a number in it; another reading's are there once it was run."""
        full = {(f.setting, f.metric) for f in self.figures if f.ours or f.void or f.paper is not None}
        run = {f.setting for f in self.figures if f.ours or f.void}
        shown = [s.name for s in self.experiment.settings if s.of is None or s.name in run]
        return [(s, m) for s in shown for m in self.experiment.metrics if (s, m) in full]

    @property
    def rows(self) -> list[str]:
        """The paper's rows, and of other readings those that were run."""
        run = {f.row for f in self.figures if f.ours or f.void}
        return [r.name for r in self.experiment.rows if r.of is None or r.name in run]

    @property
    def unread(self) -> list[str]:
        """The other readings, rows and columns, of which nothing was run at this scale."""
        here = {*self.rows, *(s for s, _ in self.columns)}
        parts: list[Row | Setting] = [*self.experiment.rows, *self.experiment.settings]
        return [part.name for part in parts if part.of is not None and part.name not in here]

    def grid(self) -> list[list[str]]:
        """A head and one line per row, as text."""
        texts = {(f.row, f.setting, f.metric): f.text for f in self.figures if f.ours or f.void or f.paper is not None}
        alone = len([s for s in self.experiment.settings if s.of is None or s.name in dict(self.columns)]) == 1
        head = ["", *(("" if alone else f"{s}: ") + METRICS[m].label for s, m in self.columns)]
        return [head, *([name, *(texts.get((name, *column), "") for column in self.columns)] for name in self.rows)]

    def json(self) -> Table:
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "scale": self.scale,
            "seeds": self.seeds,
            "verdicts": dict(self.verdicts),
            "readings": dict(self.readings),
            "seconds": self.seconds,
            "figures": [
                {
                    "row": f.row,
                    "setting": f.setting,
                    "metric": f.metric,
                    "paper": f.paper,
                    "paper_std": f.spread,
                    "ours": f.mean,
                    "std": f.std if f.ours else None,
                    "seeds": len(f.ours),
                    "verdict": f.verdict,
                    "reading": f.reading,
                }
                for f in self.figures
            ],
        }


def in_words(verdicts: Counter[str]) -> str:
    """«7 run: 5 within, 2 above»."""
    told = [f"{verdicts[v]} {WORDS[v]}" for v in MARKS if verdicts[v]]
    return f"{verdicts.total()} run" + (f": {', '.join(told)}" if told else "")


WORDS: dict[str, str] = {"within": "within", "above": "above", "below": "below", "void": "without such a number"}


def spreads_in_words(c: Comparison) -> str:
    """«Spread between clients beside the paper's: 3 within 1.5 points, 2 wider.»; empty where none is compared."""
    told = []
    for clients, what in ((True, "clients"), (False, "seeds")):
        found = c.spread(clients)
        said = [f"{found['within']} within {WITHIN:g} points"] if found["within"] else []
        said += [f"{found[v]} {v}" for v in ("wider", "narrower") if found[v]]
        if said:
            told.append(f"Spread between {what} beside the paper's ±: {', '.join(said)}.")
    return " ".join(told)


def compare(experiment: Experiment, scale: str, results: Results | None = None) -> Comparison:
    """The results on disk, of whichever seeds, beside the paper's figures."""
    results = results or Results(experiment.folder)
    found: dict[tuple[str, str], list[Table]] = {}
    for cell in experiment.cells(scale, results.seeds):
        if (result := results.of(cell)) is not None:
            named = {**result, "row": cell.row.name, "setting": cell.setting.name}
            found.setdefault((cell.row.name, cell.setting.name), []).append(named)
    figures = [
        figure
        for cell in experiment.cells(scale, [0])
        for figure in _figures(cell, found.get((cell.row.name, cell.setting.name), []))
    ]
    return Comparison(experiment, scale, tuple(figures), tuple(r for rs in found.values() for r in rs))


def _figures(cell: Cell, results: Iterable[Table]) -> Iterable[Figure]:
    """All figures of a cell, from its results of all seeds."""
    row, setting, metrics = cell.row, cell.setting.name, cell.experiment.metrics
    paper, spread = row.figures(setting, metrics), row.spreads(setting, metrics)
    reading = row.of is not None or cell.setting.of is not None
    for metric in metrics:
        ours = [r["metrics"][metric] for r in results if metric in r["metrics"]]
        known = tuple(METRICS[metric].factor * v for v in ours if v is not None)
        void = len(ours) - len(known)
        theirs, of = spread.get(metric), cell.experiment.spread_of
        yield Figure(row.name, setting, metric, paper.get(metric), known, void, theirs, of, reading)
