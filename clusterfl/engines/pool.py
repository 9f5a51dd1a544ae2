"""Worker processes with one thread each; shards lie in shared memory, client state with the parent.

A call is cut into chunks that depend on the call alone, an idle worker takes the next one, and replies
are put back into client order: the bits are the same with any number of workers. Since the parent
holds what clients keep, a worker that dies takes nothing with it: it is started again and its chunk is
asked once more.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch import multiprocessing as mp

from clusterfl.client import Call, Chunk, Fields, join
from clusterfl.data.population import Population, Shards
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.worker import Plan, Worker, in_order, stacking
from clusterfl.errors import ClientError
from clusterfl.task import Task
from clusterfl.tree import Tree, row

log = logging.getLogger(__name__)

TRIES = 3  # how often a chunk may kill its worker before the run gives up


class Pool(BaseEngine):
    """``workers`` processes (default: one per core), each with one thread."""

    def __init__(
        self, task: Task, population: Population, plan: Plan | None = None, workers: int | None = None
    ) -> None:
        super().__init__(task, population)
        self.plan = plan or Plan()
        self.workers = workers or os.cpu_count() or 1
        if self.workers < 1:
            raise ValueError(f"workers={workers} should be at least 1")
        self._context = mp.get_context("spawn")
        self._kept: dict[int, Tree] = {}
        self._members: list[_Member] = []
        self.hold(population)

    def hold(self, population: Population) -> None:
        """Shards are handed to workers when they start, so other data means other workers."""
        super().hold(population)
        self.close()
        self._shards = (_shared(population.train), _shared(population.test))
        self._members = [self._spawn() for _ in range(self.workers)]

    # -- the engine ----------------------------------------------------------------------------------

    def execute(self, call: Call) -> Iterator[Chunk]:
        if in_script(call.method) and not in_script(self.task):
            raise ValueError(
                f"method={type(call.method).__name__} should be in a module of its own, not in the script, to run in "
                "worker processes; or choose engine = 'stacked' or 'serial'"
            )
        chunks = list(self._cut(call))
        shared = _Block.of(call.shared)
        jobs = (self._job(call, at, shared) for at in chunks)
        yield from in_order(self._keeping(call, chunks, jobs))

    def _job(self, call: Call, at: Tensor, shared: _Block) -> tuple[Any, ...]:
        """A chunk of a call as a message: what all its clients get, and what these ones get."""
        part = call.only(at)
        kept = [] if call.server else [self._kept.get(i, {}) for i in part.ids.tolist()]
        own = _Block.of({"ids": part.ids, "key": part.key, "each": part.each, "kept": kept})
        return "run", (call.method, call.name, call.round, call.server, call.measure), shared, own

    def _keeping(self, call: Call, chunks: list[Tensor], jobs: Iterator[tuple[Any, ...]]) -> Iterator[Chunk]:
        for j, (fields, kept) in self._spread(jobs, call.label, [int(call.ids[at[0]]) for at in chunks]):
            for i, state in zip(call.ids[chunks[j]].tolist(), kept, strict=False):
                if state:
                    self._kept[i] = {n: t.clone() for n, t in state.items()}
            yield Chunk(chunks[j], fields)

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        block = _Block.of({"models": models})
        # a few jobs per message, enough messages to keep every worker busy to the end
        per = max(1, -(-len(jobs) // (4 * self.workers)))
        parts = [list(jobs[at : at + per]) for at in range(0, len(jobs), per)]
        messages = (("score", [k for k, _ in part], block, _Block.of([rows for _, rows in part])) for part in parts)
        done: dict[int, list[Tensor]] = dict(self._spread(messages, "evaluation", [-1] * len(parts)))
        return [t for j in range(len(parts)) for t in done[j]]

    def states(self) -> dict[int, Tree]:
        return dict(self._kept)

    def set_states(self, states: dict[int, Tree]) -> None:
        self._kept = dict(states)

    def close(self) -> None:
        for member in self._members:
            member.end()
        self._members = []

    # -- how it works --------------------------------------------------------------------------------

    def _cut(self, call: Call) -> Iterator[Tensor]:
        if self.plan.stacked:
            yield from stacking(call, self.holds.train.sizes, self._kept, self.plan.chunk, exact=self.task.coupled)
            return
        # one client at a time gives the same bits however they are cut: small pieces balance the load
        size = max(1, min(16, len(call.ids) // (4 * self.workers)))
        yield from torch.arange(len(call.ids)).split(size)

    def _spread(self, jobs: Iterator[tuple[Any, ...]], label: str, clients: list[int]) -> Iterator[tuple[int, Any]]:
        """(job number, answer), as they are finished."""
        todo: deque[tuple[int, tuple[Any, ...], int]] = deque()
        numbered = enumerate(jobs)
        idle = list(self._members)
        busy: dict[Any, tuple[_Member, int, tuple[Any, ...], int]] = {}
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
                    member.pipe.send(job)
                except (BrokenPipeError, OSError):
                    idle.append(self._again(member))
                    todo.appendleft((number, job, tries))
                    continue
                busy[member.pipe] = (member, number, job, tries)
            if not busy:
                return
            for pipe in wait(list(busy)):
                member, number, job, tries = busy.pop(pipe)
                try:
                    ok, answer = member.pipe.recv()
                except (EOFError, OSError, RuntimeError) as e:
                    idle.append(self._again(member))
                    log.warning("a worker died in %s (%s); it was started again", label, type(e).__name__)
                    if tries >= TRIES:
                        raise ClientError(label, clients[number], f"its worker died {TRIES} times") from e
                    todo.append((number, job, tries + 1))
                    continue
                idle.append(member)
                if not ok:
                    self._drain(busy)
                    raise answer
                yield number, answer.value()

    def _drain(self, busy: dict[Any, Any]) -> None:
        """Waits for what is under way, so that the next call finds clean pipes."""
        for member, *_ in busy.values():
            try:
                member.pipe.recv()
            except (EOFError, OSError, RuntimeError):
                self._again(member)

    def _spawn(self) -> _Member:
        here, there = self._context.Pipe()
        args = (there, self.task, *self._shards, self.plan)
        process = self._context.Process(target=_serve, args=args, daemon=True)
        with _script_hidden(unless=in_script(self.task)):
            process.start()
        there.close()
        return _Member(process, here)

    def _again(self, member: _Member) -> _Member:
        member.end()
        fresh = self._spawn()
        self._members[self._members.index(member)] = fresh
        return fresh


def in_script(value: object) -> bool:
    """Whether a value needs the running script (``__main__``), which workers do not read, or cannot be sent."""
    try:
        return b"__main__" in bytes(ForkingPickler.dumps(value))
    except Exception:
        return True


@contextmanager
def _script_hidden(*, unless: bool) -> Iterator[None]:
    """Workers would run the user's script again, and one without ``if __name__ == "__main__"`` would start
    workers of its own. They need it only where the model itself is defined in it."""
    script = sys.modules["__main__"]
    kept = {n: getattr(script, n) for n in ("__file__", "__spec__") if hasattr(script, n)}
    if not unless:
        for name in kept:
            setattr(script, name, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(script, name, value)


@dataclass(eq=False)
class _Member:
    process: Any
    pipe: Connection

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


@dataclass(frozen=True)
class _Block:
    """Nested dicts of tensors in ONE shared-memory tensor: a message costs one handle, not one per tensor."""

    memory: Tensor
    layout: Any

    @staticmethod
    def of(value: Any) -> _Block:
        tensors: list[tuple[Tensor, int]] = []
        end = 0

        def place(v: Any) -> Any:
            nonlocal end
            if isinstance(v, Tensor):
                at, end = end, end + -(-v.numel() * v.element_size() // 64) * 64
                tensors.append((v, at))
                return (at, v.dtype, tuple(v.shape))
            if isinstance(v, dict):
                return {n: place(x) for n, x in v.items()}
            return [place(x) for x in v]

        layout = place(value)
        memory = torch.empty(max(end, 1), dtype=torch.uint8).share_memory_()
        for t, at in tensors:
            _window(memory, at, t.dtype, tuple(t.shape)).copy_(t)
        return _Block(memory, layout)

    def value(self) -> Any:
        def take(v: Any) -> Any:
            if isinstance(v, tuple):
                return _window(self.memory, *v)
            if isinstance(v, dict):
                return {n: take(x) for n, x in v.items()}
            return [take(x) for x in v]

        return take(self.layout)


def _window(memory: Tensor, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    n = 1
    for s in shape:
        n *= s
    size = n * torch.empty(0, dtype=dtype).element_size()
    return memory[at : at + size].view(dtype).reshape(shape)


def _shared(shards: Shards) -> Shards:
    return Shards(*(t.share_memory_() for t in (shards.x, shards.y, shards.rows, shards.offsets)))


def _serve(pipe: Connection, task: Task, train: Shards, test: Shards, plan: Plan) -> None:
    """A worker's life: take a job, answer it, until the pipe ends."""
    torch.set_num_threads(1)
    worker = Worker(task, train, test, plan)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            kind, head, shared, own = job
            if kind == "run":
                answer = _run(worker, head, shared.value(), own.value())
            else:
                models = shared.value()["models"]
                answer = [worker.score_rows(row(models, k), rows) for k, rows in zip(head, own.value(), strict=True)]
            pipe.send((True, _Block.of(answer)))
        except Exception as e:
            pipe.send((False, e if isinstance(e, ClientError) else RuntimeError(f"{type(e).__name__}: {e}")))


def _run(worker: Worker, head: tuple[Any, ...], shared: Fields, own: dict[str, Any]) -> list[Any]:
    """[replies in the order of the chunk, what each of its clients now keeps ({} where nothing changed)]."""
    method, name, round, server, measure = head
    call = Call(method, name, own["ids"], shared, own["each"], own["key"], round, server, measure)
    ids = call.ids.tolist()
    before = dict(zip(ids, own["kept"], strict=False))
    worker.states = dict(before)
    fields = join([chunk.fields for chunk in worker.run(call)])
    after = [worker.states.get(i, {}) for i in ids]
    return [fields, [] if server else [s if s is not before[i] else {} for i, s in zip(ids, after, strict=True)]]
