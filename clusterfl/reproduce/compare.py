"""Ours beside the paper's, figure by figure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from clusterfl.config.tables import Table
from clusterfl.reproduce.spec import METRICS, Experiment
from clusterfl.reproduce.store import Results


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
