"""S_t, the clients of a round, and the engine that reaches them: the one way to client data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk, Reducer, join, length, take_rows
from clusterfl.errors import NoReplies
from clusterfl.keys import Key
from clusterfl.message import Fields, Payload, Procedure
from clusterfl.task import Task
from clusterfl.tree import Tree, nbytes

if TYPE_CHECKING:
    from clusterfl.data.population import Population

T = TypeVar("T")


@dataclass(frozen=True)
class Replies:
    """What came back: fields stacked ``[m, …]`` and aligned with ``ids``, which may be fewer than were asked."""

    ids: Tensor
    fields: Fields
    cohort: Cohort

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __len__(self) -> int:
        return self.ids.shape[0]

    def take(self, positions: Tensor) -> Replies:
        """The replies at these positions."""
        fields = {n: take_rows(v, positions) for n, v in self.fields.items()}
        ids = self.ids[positions]
        return Replies(ids, fields, self.cohort.only(ids))

    def join(self, other: Replies, *names: str) -> tuple[Any, ...]:
        """``(replies, *fields of other)`` for the clients that answered both times, in the same order."""
        where = {int(i): j for j, i in enumerate(other.ids)}
        both = [j for j, i in enumerate(self.ids.tolist()) if i in where]
        mine = self.take(torch.tensor(both, dtype=torch.int64))
        theirs = torch.tensor([where[i] for i in mine.ids.tolist()], dtype=torch.int64)
        return (mine, *(take_rows(other.fields[n], theirs) for n in names))


@dataclass
class Traffic:
    """Bytes of payload by procedure (down: server to clients), and those that went up by "procedure.field"."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)

    def count(self, label: str, down: int, up: Mapping[str, int]) -> None:
        self.down[label] = self.down.get(label, 0) + down
        self.up[label] = self.up.get(label, 0) + sum(up.values())
        for name, size in up.items():
            self.fields[f"{label}.{name}"] = self.fields.get(f"{label}.{name}", 0) + size

    @property
    def total_down(self) -> int:
        return sum(self.down.values())

    @property
    def total_up(self) -> int:
        return sum(self.up.values())


METRICS = "evaluation: each client's test accuracy and loss, and in a report its labels"  # what no noise covers


@dataclass(frozen=True)
class Spent:
    """A run's privacy: (epsilon, delta) of the client with most releases, and what it covers and what not."""

    epsilon: float
    delta: float
    uploads: int
    uncovered: tuple[str, ...]  # "procedure: field"
    given: tuple[str, ...] = ()  # those of them that epsilon is conditional on: which model a client began from
    unit: str = "client"  # what is hidden: a client's data, or one sample of it
    sampling: str = "known"  # whether those who see the uploads know who was asked


class Engine(Protocol):
    """Carries out calls. Engines and the wrappers around them (drop-outs, attacks, guards) look alike."""

    task: Task
    traffic: Traffic
    population: Population  # what clients hold now
    far: bool  # clients are devices of their own: of their test data only sums leave them

    def execute(self, call: Call) -> Iterator[Chunk]:
        """Runs a call on its clients; yields replies in chunks, clients in the order of ``call.ids``."""
        ...

    def with_data(self, ids: Tensor) -> Tensor:
        """The positions of those that can answer: a client without training data is never asked."""
        ...

    def cohort(self, ids: Tensor, key: Key, round: int = 0) -> Cohort: ...

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]:
        """For each job (model k, test rows): what each row scores, by name (evaluate/); and ``outputs``."""
        ...

    def set_population(self, population: Population) -> None:
        """From now on the same clients hold other data (a drift); what they keep stays with them."""
        ...

    def states(self) -> dict[int, Tree]:
        """What clients keep, by id."""
        ...

    def set_states(self, states: dict[int, Tree]) -> None:
        """Puts back what clients kept (a resume)."""
        ...

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        """What those of these clients keep that the call under way made keep something."""
        ...

    def take_back(self, clients: list[int]) -> None:
        """These clients keep what they kept before the call under way: their replies were turned down."""
        ...

    def rejections(self) -> int:
        """How many replies were turned down so far."""
        ...

    def account(self) -> Tree | None:
        """Releases so far of each client, which privacy is accounted by; None where nothing is accounted."""
        ...

    def set_account(self, account: Tree | None) -> None:
        """Puts back the account (a resume)."""
        ...

    def epsilon(self) -> float | None:
        """The privacy that the rounds so far have spent; None where nothing is accounted."""
        ...

    def spent(self) -> Spent | None:
        """What was ever charged, rounds that a crash took back included."""
        ...

    def close(self) -> None:
        """Ends what the engine started."""
        ...


class Cohort:
    """S_t, wherever its members live: the one way to reach client data."""

    def __init__(
        self, engine: Engine, ids: Tensor, key: Key, round: int = 0, *, _shared: dict[str, Any] | None = None
    ) -> None:
        self.engine, self.ids, self.key, self.round = engine, ids, key, round
        # counters and log lines are common to a cohort and its parts: a round is one conversation
        self._common: dict[str, Any] = _shared if _shared is not None else {"calls": 0, "log": {}}

    @property
    def task(self) -> Task:
        return self.engine.task

    def __len__(self) -> int:
        return self.ids.shape[0]

    def only(self, ids: Tensor) -> Cohort:
        """A part of this cohort."""
        return Cohort(self.engine, ids, self.key, self.round, _shared=self._common)

    def in_round(self, round: int) -> Cohort:
        """The same cohort as in another round, whose number local rules may look at."""
        return Cohort(self.engine, self.ids, self.key, round, _shared=self._common)

    def run(
        self,
        procedure: Procedure,
        shared: Mapping[str, Payload] | None = None,
        /,
        *,
        into: Reducer | None = None,
        **each: Payload,
    ) -> Replies:
        """Runs a client procedure on every member.

        ``shared`` goes to all of them, a row of each keyword's stack to each. With ``into`` the fields
        that the reducer consumes are folded chunk by chunk and are not in the replies.
        """
        return self._replies(self._call(procedure, "on_client", self.ids, shared, each), into)

    def run_beside(
        self,
        work: Callable[[], T],
        procedure: Procedure,
        shared: Mapping[str, Payload] | None = None,
        /,
        **each: Payload,
    ) -> tuple[Replies, T]:
        """``run``, and work of the server's that does not need the replies: while it waits for them where clients are
        devices of their own, else after them. Both give the same: the call is counted before the work's own."""
        call = self._call(procedure, "on_client", self.ids, shared, each)
        if not self.engine.far:
            return self._replies(call), work()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            return self._replies(call), done.result()

    def _replies(self, call: Call, into: Reducer | None = None) -> Replies:
        answering = self.engine.with_data(call.ids)
        if len(answering) < len(call.ids):
            call = call.only(answering)
        down = sum(nbytes(v) for v in call.shared.values())
        down_each = sum(nbytes(v) for v in call.each.values()) // max(len(call.ids), 1)
        answered: list[Tensor] = []
        up: dict[str, int] = {}

        def came() -> Iterator[Fields]:
            for chunk in self.engine.execute(call) if len(call.ids) else ():
                ids = call.ids[chunk.positions]
                for name, value in chunk.fields.items():
                    up[name] = up.get(name, 0) + nbytes(value)
                answered.append(ids)
                if into is None:
                    yield chunk.fields
                else:
                    into.add(ids, chunk.fields)
                    yield {n: v for n, v in chunk.fields.items() if n not in into.consumes}

        fields = join(came(), len(call.ids))
        self.engine.traffic.count(call.label, (down + down_each) * len(call.ids), up)
        self._note_silent(len(call.ids) - sum(map(len, answered)))
        if not answered:
            raise NoReplies(call.label)
        ids = torch.cat(answered)
        return Replies(ids, fields, self.only(ids))

    def map(self, procedure: Procedure, shared: Mapping[str, Payload] | None = None, /, **each: Payload) -> Fields:
        """Server work over the rows of stacks, spread over the engine's cores; no client is asked."""
        ids = torch.arange(length(next(iter(each.values()))))
        call = replace(self._call(procedure, "on_server", ids, shared, each), server=True)
        return join((chunk.fields for chunk in self.engine.execute(call)), len(ids))

    def _call(
        self,
        procedure: Procedure,
        mark: str,
        ids: Tensor,
        shared: Mapping[str, Payload] | None,
        each: Mapping[str, Payload],
    ) -> Call:
        method = getattr(procedure, "__self__", None)
        name = getattr(procedure, "__name__", str(procedure))
        if method is None or not hasattr(procedure, f"__{mark}__"):
            raise TypeError(f"procedure={name!r} should be a method marked with @{mark}")
        for argument, value in each.items():
            if length(value) != len(ids):
                raise ValueError(f"{argument}={length(value)} rows should be one for each of {len(ids)}")
        self._common["calls"] += 1
        key = keys.fold_in(self.key, "call", self._common["calls"])
        return Call(method, name, ids, dict(shared or {}), dict(each), key, self.round)

    def _note_silent(self, n: int) -> None:
        """So many of this call's clients gave no reply that counts: they dropped out, or were turned down."""
        if n:
            self.log(silent=self._common["log"].get("silent", 0.0) + n)

    def log(self, **scalars: float) -> None:
        """Diagnostics of this round, written beside its metrics."""
        self._common["log"].update({n: float(v) for n, v in scalars.items()})

    @property
    def logged(self) -> dict[str, float]:
        return dict(self._common["log"])


@contextmanager
def one_thread() -> Iterator[None]:
    """Rounds and procedures run on one thread: parallelism is across clients, and bits do not depend on it."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
