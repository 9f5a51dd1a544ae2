"""Small runs from Python, and callbacks that watch or end them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import clusterfl
from clusterfl.callback import Callback, Moment, Stop
from clusterfl.methods import IFCA
from clusterfl.parts.local import SGD
from clusterfl.record import Outcome
from clusterfl.testing.small import CLASSES, WIDTH, small_population

LOCAL = SGD(lr=0.1, batch=10)


METHOD = IFCA(k=2, local=LOCAL)


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def run(out: Path | None = None, method: Any = METHOD, **more: Any) -> Outcome:
    settings = {"rounds": 4, "engine": "serial", **more}
    return clusterfl.run(small_population(), module(), method, out=out, **settings)


class Watching(Callback):
    """Notes what it is told, and what it could read."""

    def __init__(self, name: str, told: list[tuple[str, str, int]], folder: Path | None = None) -> None:
        self.name, self.told, self.folder = name, told, folder
        self.moments: list[Moment] = []
        self.saved: list[bool] = []

    def _note(self, hook: str, moment: Moment) -> None:
        self.told.append((self.name, hook, moment.round))
        self.moments.append(moment)
        if self.folder is not None:
            self.saved.append((self.folder / "checkpoints" / f"round-{moment.round:06d}.ckpt").exists())

    def on_start(self, moment: Moment) -> None:
        self._note("start", moment)

    def on_round(self, moment: Moment) -> None:
        self._note("round", moment)

    def on_end(self, moment: Moment, outcome: Outcome) -> None:
        self._note("end", moment)
        self.outcome = outcome


class Stopping(Callback):
    def __init__(self, at: int, error: type[BaseException] = Stop) -> None:
        self.at, self.error = at, error

    def on_start(self, moment: Moment) -> None:
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        if moment.round == self.at:
            raise self.error
