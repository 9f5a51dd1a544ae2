"""The count of the papers' figures: how many there are, how many were run, and how these compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterfl.reproduce.compare import Comparison
from clusterfl.reproduce.spec import COUNTED, METRICS, Experiment

Place = tuple[str, str, str, str]  # experiment, row, setting, metric


@dataclass(frozen=True)
class Count:
    """Of the figures that papers print: what came out at full scale, of the others at laptop scale, and what was
    not run, by reason."""

    printed: int
    full: Counter[str]
    laptop: Counter[str]  # of figures that were not run at full scale
    missing: Counter[str]  # by reason
    readings: Counter[str]  # beside these: runs of the papers' figures in another reading, at any scale

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
    readings: Counter[str] = Counter()
    for c in compared:
        readings += c.readings
        for f in c.figures:
            if f.verdict and not f.reading:
                verdicts[c.scale][c.experiment.name, f.row, f.setting, f.metric] = f.verdict
    full, laptop, missing = Counter[str](), Counter[str](), Counter[str]()
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
    return Count(total, full, laptop, missing, readings)


def why_missing(e: Experiment) -> str:
    """Why a figure was run at no scale: laptop scale needs no more than the data at hand, and time."""
    return "time" if e.not_run == "size" else e.not_run
