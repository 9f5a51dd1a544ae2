"""The Gaussian mechanism, exactly: how much noise an epsilon takes, and what epsilon some noise is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

SMALLEST = 1e-12  # of delta: below it the accounts' own rounding is larger


def check_delta(delta: float) -> None:
    if not SMALLEST <= delta < 1.0:
        raise ValueError(f"delta={delta} should be at least {SMALLEST:g} and below 1")


def delta_of(epsilon: float, noise: float) -> float:
    """The least delta of a Gaussian release with noise of so many sensitivities.

    Balle and Wang, ICML 2018, theorem 8: exact, not a bound.
    """

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2.0))

    grown = math.exp(min(epsilon, 700.0))  # beyond it there are no such numbers; less is on the safe side
    return phi(0.5 / noise - epsilon * noise) - grown * phi(-0.5 / noise - epsilon * noise)


@lru_cache
def multiplier(epsilon: float, delta: float) -> float:
    """The least noise, in sensitivities, with which one Gaussian release is (epsilon, delta)-private."""
    return _least(lambda noise: delta_of(epsilon, noise) <= delta)


@lru_cache
def epsilon_of(noise: float, delta: float, releases: int = 1) -> float:
    """Epsilon of so many Gaussian releases with this noise, in sensitivities: together they are one with noise smaller
    by the root of their number."""
    return _least(lambda epsilon: delta_of(epsilon, noise / math.sqrt(releases)) <= delta)


def _least(enough: Callable[[float], bool]) -> float:
    """The least number above 0 that is enough, where every larger one is."""
    low, high = 1e-3, 1.0
    while not enough(high):
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
