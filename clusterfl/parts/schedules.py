"""How the local step size changes over rounds: a factor on it, by the number of the round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from clusterfl.fields import at_least, option
from clusterfl.method import Registered


def warmed(round: int, warmup: int) -> float:
    """Rises in equal parts over ``warmup`` rounds and is 1 from then on."""
    return min(1.0, (round + 1) / (warmup + 1))


@dataclass(frozen=True)
class WarmUp(Registered):
    """A few rounds of smaller steps, then all the same."""

    name: ClassVar[str] = "warm-up"

    rounds: int = option(5, "rounds of smaller steps")

    def __post_init__(self) -> None:
        at_least(1, self, "rounds")

    def factor(self, round: int) -> float:
        return warmed(round, self.rounds)


@dataclass(frozen=True)
class Cosine(Registered):
    """Half a wave of a cosine from 1 down to ``floor``, where it stays."""

    name: ClassVar[str] = "cosine"

    rounds: int = option(100, "rounds until the floor is reached, warm-up included: as a rule all of the run's")
    floor: float = option(0.0, "the last factor")
    warmup: int = option(0, "rounds of smaller steps before it")

    def __post_init__(self) -> None:
        at_least(0, self, "floor", "warmup")
        if self.rounds <= self.warmup:
            raise ValueError(f"rounds={self.rounds} should be above warmup={self.warmup}")

    def factor(self, round: int) -> float:
        if round < self.warmup:
            return warmed(round, self.warmup)
        done = min(1.0, (round - self.warmup) / max(1, self.rounds - 1 - self.warmup))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Step(Registered):
    """Smaller by the same factor every so many rounds."""

    name: ClassVar[str] = "step"

    every: int = option(30, "rounds between the steps down")
    times: float = option(0.1, "the factor of each step down")
    warmup: int = option(0, "rounds of smaller steps before it")

    def __post_init__(self) -> None:
        at_least(1, self, "every")
        at_least(0, self, "times", "warmup")

    def factor(self, round: int) -> float:
        return warmed(round, self.warmup) * self.times ** (round // self.every)


Schedule = WarmUp | Cosine | Step
