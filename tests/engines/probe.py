"""Small procedures that tests of engines run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.engines.base import BaseEngine
from clusterfl.message import Kept, Labels, Payload, Statistic, on_client, on_server
from clusterfl.method import Procedures
from clusterfl.parts.local import SGD

RULE = SGD(lr=0.1, batch=10, epochs=1)


IDS = torch.arange(12)
COUNT = Labels("a whole number", bound=None)


@dataclass(frozen=True)
class Probe(Procedures):
    """Small procedures that show what an engine does."""

    poison: ClassVar[int] = 5

    @on_client(calls=COUNT, draw=Statistic("a draw"), seen=Kept("how often it was called"))
    def count(self, me: Client) -> dict[str, Payload]:
        seen = me.state.get("seen", torch.zeros((), dtype=torch.int64))
        me.keep(seen=seen + 1)
        return {"calls": seen, "draw": keys.uniform(me.key)}

    @on_client(i=COUNT)
    def fail(self, me: Client, i: Tensor) -> dict[str, Payload]:
        if not me.stacked and int(i) == self.poison:
            raise ZeroDivisionError("bad luck")
        if me.stacked:
            raise RuntimeError("cannot be stacked")
        return {"i": i}

    @on_client(i=COUNT)
    def die_once(self, me: Client, i: Tensor, path: Tensor) -> dict[str, Payload]:
        from pathlib import Path

        mark = Path(bytes(path.tolist()).decode())
        if int(i) == self.poison and not mark.exists():
            mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return {"i": i + 1}

    @on_client(i=COUNT)
    def sleep_once(self, me: Client, i: Tensor, path: Tensor) -> dict[str, Payload]:
        from pathlib import Path

        mark = Path(bytes(path.tolist()).decode())
        if int(i) == self.poison and not mark.exists():
            mark.write_text("asleep")
            time.sleep(10_000)
        return {"i": i + 1}

    @on_client
    def die_always(self, me: Client) -> dict[str, Payload]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    @on_server
    def square(self, me: Client, x: Tensor) -> dict[str, Payload]:
        return {"y": x * x, "draw": keys.uniform(me.key)}


def cohort(engine: BaseEngine, seed: int = 0) -> Cohort:
    return engine.cohort(IDS, keys.key(seed))
