"""What engines with workers share: calls cut into chunks, chunks handed to whoever is idle, order restored.

A call is cut into chunks that depend on the call alone, an idle worker takes the next one, and replies
are put back into client order: the bits are the same with any number of workers. Since the parent
holds what clients keep, a worker that dies takes nothing with it: it is started again and its chunk is
asked once more. So is one that is stopped, or that has not answered in many times the longest time that such
a chunk has taken so far.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, join
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine, newly_kept, take_back
from clusterfl.engines.blocks import Block, shared_memory
from clusterfl.engines.chunks import Plan, in_order, stacking
from clusterfl.engines.worker import Worker
from clusterfl.errors import ClientError
from clusterfl.message import Fields
from clusterfl.task import Task
from clusterfl.tree import Tree, row

log = logging.getLogger(__name__)

TRIES = 3  # how often a chunk may kill its worker before the run gives up
POLL = 5.0  # seconds between looks at workers that do not answer
PATIENCE = 20.0  # a chunk may take so many times as long as the longest one of its procedure so far …
SHORTEST = 60.0  # … and never less than so many seconds …
STARTING = 600.0  # … and so many more where its worker has never answered: on a busy machine it is still starting

# what a worker is asked, kind first: ("run", the call's head, what all clients get, what these clients get)
# or ("score", (one model number per piece, whether outputs are wanted), the models, the pieces: test rows)
Job = tuple[Any, ...]


class Gone(Exception):
    """A worker has died; whatever it was asked is lost."""


class Member(Protocol):
    """A worker, seen from here: it is sent one job and answers it before it gets the next."""

    def send(self, job: Job) -> None: ...

    def receive(self) -> tuple[bool, Any]:
        """(True, a Block) or (False, an exception); raises :class:`Gone`."""
        ...

    def stopped(self) -> bool:
        """Whether it is known to stand still."""
        ...

    def end(self) -> None: ...


@dataclass
class _Asked:
    """A job that a worker has, and how long it has been waited for (the time that this process slept apart)."""

    number: int
    job: Job
    tries: int
    began: float
    waited: float = 0.0


class Parallel(BaseEngine):
    """An engine with workers; what they are (processes, actors) is for its subclasses to say."""

    def __init__(self, task: Task, population: Population, plan: Plan | None, workers: int) -> None:
        super().__init__(task, population)
        if workers < 1:
            raise ValueError(f"workers={workers} should be at least 1")
        self.plan, self.workers = plan or Plan(), workers
        self._kept: dict[int, Tree] = {}
        self._before: dict[int, Tree] = {}  # what clients kept before the call under way, where it changed that
        self._members: list[Any] = []
        self._longest: dict[str, float] = {}  # seconds of a chunk, by procedure
        self._known: WeakSet[Any] = WeakSet()  # members that have answered before
        self.set_population(population)

    @abstractmethod
    def place(self, population: Population) -> None:
        """Puts the shards where workers find them when they start."""

    @abstractmethod
    def spawn(self) -> Member: ...

    def respawn(self) -> Member | None:
        """A worker in place of one that is gone; None where there is no place for it and others go on."""
        return self.spawn()

    @abstractmethod
    def finished(self, busy: list[Any], timeout: float) -> list[Any]:
        """Waits until one of these members at least has answered or died, or so many seconds; returns those."""

    def pack(self, value: Any) -> Any:
        """Tensors as they travel to workers; packed once, sent with many jobs."""
        return Block.of(value, shared_memory)

    # -- the engine ----------------------------------------------------------------------------------

    def set_population(self, population: Population) -> None:
        """Shards are handed to workers when they start, so other data means other workers."""
        super().set_population(population)
        self.end_members()
        self.place(population)
        try:
            while len(self._members) < self.workers:
                self._members.append(self.spawn())
        except BaseException:
            self.end_members()
            raise

    def execute(self, call: Call) -> Iterator[Chunk]:
        self._before = {}
        chunks = list(self._cut(call))
        shared = self.pack(call.shared)
        jobs = (self._job(call, at, shared) for at in chunks)
        yield from in_order(self._keeping(call, chunks, jobs))

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]:
        packed = self.pack({"models": models})
        # a few jobs per message, enough messages to keep every worker busy to the end
        per = max(1, -(-len(jobs) // (4 * self.workers)))
        parts = [list(jobs[at : at + per]) for at in range(0, len(jobs), per)]
        messages = (
            ("score", ([k for k, _ in part], outputs), packed, self.pack([rows for _, rows in part])) for part in parts
        )
        done: dict[int, list[Tree]] = dict(self._spread(messages, "evaluation", [-1] * len(parts)))
        return [t for j in range(len(parts)) for t in done[j]]

    def states(self) -> dict[int, Tree]:
        return dict(sorted(self._kept.items()))  # in whatever order they answered

    def set_states(self, states: dict[int, Tree]) -> None:
        self._kept, self._before = dict(states), {}

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        return newly_kept(self._kept, self._before, clients)

    def take_back(self, clients: list[int]) -> None:
        take_back(self._kept, self._before, clients)

    def close(self) -> None:
        self.end_members()

    def end_members(self) -> None:
        for member in self._members:
            member.end()
        self._members = []

    # -- how it works --------------------------------------------------------------------------------

    def _cut(self, call: Call) -> Iterator[Tensor]:
        if self.plan.stacked:
            yield from stacking(call, self.population.train.sizes, self._kept, self.plan, exact=self.task.coupled)
            return
        # one client at a time gives the same bits however they are cut: large pieces first, which cost few messages,
        # and small ones at the end, so that no worker waits long for the last
        at = 0
        while at < len(call.ids):
            left = len(call.ids) - at
            size = min(16, -(-left // (2 * self.workers)))
            yield torch.arange(at, at + size)
            at += size

    def _job(self, call: Call, at: Tensor, shared: Any) -> Job:
        """A chunk of a call as a message: what all its clients get, and what these ones get."""
        part = call.only(at)
        kept = [] if call.server else [self._kept.get(i, {}) for i in part.ids.tolist()]
        tests = {} if part.test_of is None else {"test_of": part.test_of}
        own = self.pack({"ids": part.ids, "key": part.key, "each": part.each, "kept": kept, **tests})
        return "run", (call.method, call.name, call.round, call.server, call.measure), shared, own

    def _keeping(self, call: Call, chunks: list[Tensor], jobs: Iterator[Job]) -> Iterator[Chunk]:
        for j, (fields, kept) in self._spread(jobs, call.label, [int(call.ids[at[0]]) for at in chunks]):
            for i, state in zip(call.ids[chunks[j]].tolist(), kept, strict=False):
                if state:
                    self._before.setdefault(i, self._kept.get(i, {}))
                    self._kept[i] = {n: t.clone() for n, t in state.items()}
            yield Chunk(chunks[j], fields)

    def _spread(self, jobs: Iterator[Job], label: str, clients: list[int]) -> Iterator[tuple[int, Any]]:
        """(job number, answer), as they are finished."""
        todo: deque[tuple[int, Job, int]] = deque()
        numbered = enumerate(jobs)
        idle = list(self._members)
        busy: dict[Member, _Asked] = {}
        while True:
            while idle:
                if not todo:
                    following = next(numbered, None)
                    if following is None:
                        break
                    todo.append((*following, 1))
                number, job, tries = todo.popleft()
                member = idle.pop()
                try:
                    member.send(job)
                except Gone:
                    idle += self._again(member)
                    todo.appendleft((number, job, tries))
                    continue
                busy[member] = _Asked(number, job, tries, time.monotonic())
            if not busy:
                return
            for member in self._answering(busy, label):
                asked = busy.pop(member)
                number = asked.number
                try:
                    if asked.waited > self._deadline(member, asked, label):
                        raise Gone(f"no answer in {asked.waited:.0f} s")
                    ok, answer = member.receive()
                except Gone as e:
                    log.warning("a worker is gone in %s (%s); its clients are asked again", label, e)
                    idle += self._again(member)
                    if asked.tries >= TRIES:
                        self._drain(list(busy))
                        raise ClientError(label, clients[number], f"its worker died {TRIES} times") from e
                    todo.append((number, asked.job, asked.tries + 1))
                    continue
                if member in self._known:  # its first answer has to wait for it to start
                    self._longest[label] = max(self._longest.get(label, 0.0), time.monotonic() - asked.began)
                self._known.add(member)
                idle.append(member)
                if not ok:
                    self._drain(list(busy))
                    raise answer
                yield number, answer.value()

    def _answering(self, busy: dict[Member, _Asked], label: str) -> list[Member]:
        """Members that have answered or died, or are waited for too long."""
        while True:
            began = time.monotonic()
            ready = self.finished(list(busy), POLL)
            slept = min(time.monotonic() - began, 2 * POLL)  # a suspended machine, or run, is nobody's delay
            for member, asked in busy.items():
                asked.waited = 0.0 if member in ready else asked.waited + slept
            late = [m for m, asked in busy.items() if asked.waited > self._deadline(m, asked, label)]
            if ready or late:
                return [*ready, *late]

    def _deadline(self, member: Member, asked: _Asked, label: str) -> float:
        """Seconds after which a member is given up; none where nothing is known of such chunks and it goes on."""
        if asked.waited > SHORTEST and member.stopped():
            return SHORTEST
        longest = self._longest.get(label, float("inf"))
        starts = 0.0 if member in self._known else STARTING
        return starts + max(SHORTEST, PATIENCE * longest) * 2.0 ** (asked.tries - 1)

    def _drain(self, busy: list[Member]) -> None:
        """Waits for what is under way, so that the next call finds workers that listen."""
        while busy:
            ready = self.finished(busy, SHORTEST)
            for member in ready or busy:
                try:
                    if not ready:
                        raise Gone("no answer")
                    member.receive()
                except Gone:
                    self._again(member)
            busy = [member for member in busy if member not in ready] if ready else []

    def _again(self, member: Member) -> list[Member]:
        """The worker in place of one that is gone, if there is one."""
        member.end()
        fresh = self.respawn()
        self._members = [m for m in self._members if m is not member] + ([] if fresh is None else [fresh])
        return [] if fresh is None else [fresh]


def answer(worker: Worker, kind: str, head: Any, shared: Any, own: Any) -> tuple[bool, Any]:
    """A job's answer, in the worker: (True, a value to be packed) or (False, an exception)."""
    try:
        if kind == "run":
            return True, _run(worker, head, shared, own)
        models, (which, outputs) = shared["models"], head
        pieces = zip(which, own, strict=True)
        return True, [worker.score_rows(row(models, k), rows, outputs=outputs) for k, rows in pieces]
    except Exception as e:
        return False, e if isinstance(e, ClientError) else RuntimeError(f"{type(e).__name__}: {e}")


def _run(worker: Worker, head: tuple[Any, ...], shared: Fields, own: dict[str, Any]) -> list[Any]:
    """[replies in the order of the chunk, what each of its clients now keeps ({} where nothing changed)]."""
    method, name, round, server, measure = head
    call = Call(method, name, own["ids"], shared, own["each"], own["key"], round, server, measure, own.get("test_of"))
    ids = call.ids.tolist()
    before = dict(zip(ids, own["kept"], strict=False))
    worker.states = dict(before)
    fields = join((chunk.fields for chunk in worker.run(call)), len(ids))
    after = [worker.states.get(i, {}) for i in ids]
    return [fields, [] if server else [s if s is not before[i] else {} for i, s in zip(ids, after, strict=True)]]
