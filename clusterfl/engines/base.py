"""What every engine shares: cohorts, metering, who can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

from torch import Tensor

from clusterfl.call import Call, Chunk
from clusterfl.cohort import Cohort, Spent, Traffic
from clusterfl.data.population import Population
from clusterfl.keys import Key
from clusterfl.task import Task
from clusterfl.tree import Tree


class BaseEngine(ABC):
    """An engine over a population; :class:`~clusterfl.cohort.Engine` says what each part is for."""

    far = False

    def __init__(self, task: Task, population: Population) -> None:
        self.task = task
        self.clients = population.clients
        self.traffic = Traffic()
        self.population = population

    @abstractmethod
    def execute(self, call: Call) -> Iterator[Chunk]: ...

    @abstractmethod
    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]: ...

    @abstractmethod
    def states(self) -> dict[int, Tree]: ...

    @abstractmethod
    def set_states(self, states: dict[int, Tree]) -> None: ...

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        return {}

    def take_back(self, clients: list[int]) -> None:  # noqa: B027
        """Nothing is known here of what clients keep."""

    def set_population(self, population: Population) -> None:
        self.population = population

    def with_data(self, ids: Tensor) -> Tensor:
        return (self.population.train.sizes[ids] > 0).nonzero().flatten()

    def rejections(self) -> int:
        return 0

    def note_rejection(self, client: int) -> None:  # noqa: B027
        """Whoever keeps count of clients is told of a reply that was turned down."""

    def account(self) -> Tree | None:
        return None

    def set_account(self, account: Tree | None) -> None:  # noqa: B027
        """Nothing is accounted here (wrappers/privacy.py does)."""

    def epsilon(self) -> float | None:
        return None

    def spent(self) -> Spent | None:
        return None

    def cohort(self, ids: Tensor, key: Key, round: int = 0) -> Cohort:
        return Cohort(self, ids, key, round)

    def close(self) -> None:  # noqa: B027 (most engines have nothing to end)
        """Ends what the engine started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def newly_kept(states: dict[int, Tree], before: dict[int, Tree], clients: list[int]) -> dict[int, Tree]:
    """What those of these clients keep that the call under way made keep something."""
    return {i: states[i] for i in clients if i in before and i in states}


def take_back(states: dict[int, Tree], before: dict[int, Tree], clients: list[int]) -> None:
    """Puts back what these clients kept before the call under way."""
    for i in clients:
        old = before.pop(i, None)
        if old:
            states[i] = old
        elif old is not None:
            states.pop(i, None)
