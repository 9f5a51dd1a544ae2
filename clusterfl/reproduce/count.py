"""The count of the papers' figures: how many there are, how many were run, and how these compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterfl.reproduce.compare import Comparison
from clusterfl.reproduce.letter import differences
from clusterfl.reproduce.spec import COUNTED, METRICS, Experiment

Place = tuple[str, str, str, str]  # experiment, row, setting, metric


@dataclass(frozen=True)
class Count:
    """Of the figures that papers print: what came out at full scale, of the others at laptop scale, and what was
    not run, by reason."""

    printed: int
    full: Counter[str]
    letter: Counter[str]  # of the former, those of rows whose method is its paper's letter
    laptop: Counter[str]  # of figures that were not run at full scale
    missing: Counter[str]  # by reason
    readings: Counter[str]  # beside these: runs of the papers' figures in another reading, at any scale
    literal: Counter[str]  # of the former, those to the paper's letter in the paper's setting

    @property
    def run(self) -> int:
        return self.full.total() + self.laptop.total()


def printed(e: Experiment) -> list[Place]:
    """The figures of the paper that an experiment holds, each of them once."""
    return [
        (e.name, row.name, setting.name, metric)
        for row in e.rows
        for setting in e.settings
        for metric in row.figures(setting.name, e.metrics)
        if row.of is None and setting.of is None and METRICS[metric].within is not None
    ]


def count(experiments: Sequence[Experiment], compared: Iterable[Comparison]) -> Count:
    verdicts: dict[str, dict[Place, str]] = {scale: {} for scale in COUNTED}
    full, letter, laptop, missing, readings, literal = (Counter[str]() for _ in range(6))
    for c in compared:
        readings += c.readings
        literal += Counter(f.verdict for f in c.figures if f.verdict and f.reading and is_literal(c, f.row, f.setting))
        for f in c.figures:
            if f.verdict and not f.reading:
                verdicts[c.scale][c.experiment.name, f.row, f.setting, f.metric] = f.verdict
                if c.scale == "full" and is_literal(c, f.row, f.setting):
                    letter[f.verdict] += 1
    total = 0
    for e in experiments:
        for place in printed(e):
            total += 1
            if place in verdicts["full"]:
                full[verdicts["full"][place]] += 1
            elif place in verdicts["laptop"]:
                laptop[verdicts["laptop"][place]] += 1
            else:
                missing[why_missing(e)] += 1
    return Count(total, full, letter, laptop, missing, readings, literal)


def is_literal(c: Comparison, row: str, setting: str) -> bool:
    """Whether a row's method is its paper's letter, in the paper's own setting."""
    e = c.experiment
    own = next(s for s in e.settings if s.name == setting).of is None
    return own and not differences(e, next(r for r in e.rows if r.name == row), c.scale)


def why_missing(e: Experiment) -> str:
    """Why a figure was run at no scale: laptop scale needs no more than the data at hand, and time."""
    return "time" if "size" in e.not_run else e.not_run
