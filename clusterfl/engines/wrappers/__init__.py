"""What lies between clients and server: engines around an engine. Honest clients blur what they send (privacy) or
drop out (flaky), attackers falsify it (attack), and the server checks (guard) and cuts (clip) what comes in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from clusterfl.call import Call, Chunk
from clusterfl.cohort import Spent
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine
from clusterfl.tree import Tree


class Wrapper(BaseEngine):
    """An engine around an engine; it passes everything on."""

    def __init__(self, inner: BaseEngine) -> None:
        self.inner = inner
        self.task, self.clients, self.traffic = inner.task, inner.clients, inner.traffic
        self.population, self.far = inner.population, inner.far

    def set_population(self, population: Population) -> None:
        super().set_population(population)
        self.inner.set_population(population)

    def execute(self, call: Call) -> Iterator[Chunk]:
        yield from self.inner.execute(call)

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]:
        return self.inner.score_rows(models, jobs, outputs=outputs)

    def states(self) -> dict[int, Tree]:
        return self.inner.states()

    def set_states(self, states: dict[int, Tree]) -> None:
        self.inner.set_states(states)

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        return self.inner.newly_kept(clients)

    def take_back(self, clients: list[int]) -> None:
        self.inner.take_back(clients)

    def rejections(self) -> int:
        return self.inner.rejections()

    def note_rejection(self, client: int) -> None:
        self.inner.note_rejection(client)

    def account(self) -> Tree | None:
        return self.inner.account()

    def set_account(self, account: Tree | None) -> None:
        self.inner.set_account(account)

    def epsilon(self) -> float | None:
        return self.inner.epsilon()

    def spent(self) -> Spent | None:
        return self.inner.spent()

    def close(self) -> None:
        self.inner.close()


L = TypeVar("L", bound=Wrapper)


def wrapper_of(engine: BaseEngine, kind: type[L]) -> L | None:
    """The wrapper of a kind around an engine, if there is one."""
    while isinstance(engine, Wrapper):
        if isinstance(engine, kind):
            return engine
        engine = engine.inner
    return None
