"""What can be said of several runs: intervals over seeds, paired tests with a correction, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.05
TEST = "two-sided paired t-test over seeds against the best mean, Holm's correction over the methods, level 0.05"


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval (Student's t); NaN for one value."""

    mean: float
    half: float
    values: tuple[float, ...]

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        from scipy import stats

        known = [v for v in values if math.isfinite(v)]
        if not known:
            return Interval(math.nan, math.nan, ())
        mean, n = float(np.mean(known)), len(known)
        half = float(stats.t.ppf(1 - LEVEL / 2, n - 1) * np.std(known, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
        return Interval(mean, half, tuple(known))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Corrected p-values: the j-th smallest of m times m - j, never falling."""
    found, least = {}, 0.0
    for j, name in enumerate(sorted(p, key=lambda n: p[n])):
        least = max(least, min(1.0, (len(p) - j) * p[name]))
        found[name] = least
    return found


@dataclass(frozen=True)
class Standing:
    """The best of several methods, and the corrected p-value of each other one against it; None: cannot be tested."""

    best: str
    p: dict[str, float | None]

    def tied(self, name: str) -> bool:
        """Whether the data cannot tell it from the best; False also where nothing could be tested."""
        value = self.p.get(name)
        return value is not None and value >= LEVEL


def standing(values: Mapping[str, Mapping[Any, float]], *, higher: bool) -> Standing:
    """``values[method][seed]``, or what else makes a pair; those that both have are compared."""
    from scipy import stats

    means = {name: float(np.mean(list(v.values()))) for name, v in values.items() if v}
    best = (max if higher else min)(means, key=lambda n: means[n])
    raw: dict[str, float] = {}
    untested: dict[str, None] = {}
    for name in means:
        if name == best:
            continue
        seeds = sorted(values[best].keys() & values[name].keys())
        gaps = np.array([values[best][s] - values[name][s] for s in seeds])
        if len(seeds) > 1 and not gaps.any():
            raw[name] = 1.0
        elif len(seeds) < 2 or np.ptp(gaps) < 1e-9:  # the same gap for every seed has no spread to compare it with
            untested[name] = None
        else:
            raw[name] = float(stats.ttest_1samp(gaps, 0.0).pvalue)
    return Standing(best, {**holm(raw), **untested})


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over blocks (1 is best), Friedman's test, and Nemenyi's critical distance at 0.05."""

    mean: dict[str, float]
    blocks: int
    p: float
    distance: float


def ranks(table: Mapping[str, Sequence[float]], *, higher: bool) -> Ranks | None:
    """``table[method][block]``, every method in every block; None for too few of either."""
    from scipy import stats

    names = list(table)
    values = np.array([table[name] for name in names], dtype=float)
    if len(names) < 2 or values.shape[1] < 2:
        return None
    placed = np.array([stats.rankdata(-column if higher else column) for column in values.T])
    k, n = len(names), len(placed)
    if k > 2:
        spread = [len(np.unique(column)) > 1 for column in values.T]
        p = float(stats.friedmanchisquare(*values).pvalue) if any(spread) else 1.0
    else:
        p = math.nan
    q = float(stats.studentized_range.ppf(1 - LEVEL, k, math.inf)) / math.sqrt(2)
    return Ranks(
        dict(zip(names, placed.mean(axis=0).tolist(), strict=True)), n, p, q * math.sqrt(k * (k + 1) / (6 * n))
    )
