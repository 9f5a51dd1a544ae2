"""An engine whose clients drop out at random: for tests, and for studies of unreliable devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Call, Chunk
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine, Spent
from clusterfl.tree import Tree


class Wrapper(BaseEngine):
    """An engine around an engine; it passes everything on."""

    def __init__(self, inner: BaseEngine) -> None:
        self.inner = inner
        self.task, self.clients, self.traffic = inner.task, inner.clients, inner.traffic
        self.holds = inner.holds

    def hold(self, population: Population) -> None:
        super().hold(population)
        self.inner.hold(population)

    def execute(self, call: Call) -> Iterator[Chunk]:
        yield from self.inner.execute(call)

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        return self.inner.score_rows(models, jobs)

    def states(self) -> dict[int, Tree]:
        return self.inner.states()

    def set_states(self, states: dict[int, Tree]) -> None:
        self.inner.set_states(states)

    def rejections(self) -> int:
        return self.inner.rejections()

    def epsilon(self) -> float | None:
        return self.inner.epsilon()

    def spent(self) -> Spent | None:
        return self.inner.spent()

    def close(self) -> None:
        self.inner.close()


L = TypeVar("L", bound=Wrapper)


def layer(engine: BaseEngine, kind: type[L]) -> L | None:
    """The wrapper of a kind around an engine, if there is one."""
    while isinstance(engine, Wrapper):
        if isinstance(engine, kind):
            return engine
        engine = engine.inner
    return None


class Flaky(Wrapper):
    """Each client of each call is lost with probability ``drop``, or always if it is in ``gone``."""

    def __init__(self, inner: BaseEngine, drop: float, gone: frozenset[int] = frozenset()) -> None:
        if not 0.0 <= drop <= 1.0:
            raise ValueError(f"drop={drop} should be between 0 and 1")
        super().__init__(inner)
        self.drop, self.gone = drop, gone

    def execute(self, call: Call) -> Iterator[Chunk]:
        if call.server or call.measure:
            yield from self.inner.execute(call)
            return
        draws = torch.stack([keys.uniform(keys.fold_in(call.client_key(int(i)), "flaky")) for i in call.ids])
        lost = torch.tensor([int(i) in self.gone for i in call.ids])
        stay = ((draws >= self.drop) & ~lost).nonzero().flatten()
        if len(stay):
            for chunk in self.inner.execute(call.only(stay)):
                yield Chunk(stay[chunk.positions], chunk.fields)
