"""Worker processes with one thread each; shards lie in shared memory, client state with the parent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import multiprocessing as mp

from clusterfl.client import Call, Chunk
from clusterfl.data.population import Population, Shards
from clusterfl.engines.chunked import Block, Chunked, Gone, Job, answer
from clusterfl.engines.worker import Plan, Worker
from clusterfl.memory import keep_memory
from clusterfl.task import Task


class Pool(Chunked):
    """``workers`` processes (default: one per core), each with one thread."""

    def __init__(
        self, task: Task, population: Population, plan: Plan | None = None, workers: int | None = None
    ) -> None:
        self._context = mp.get_context("spawn")
        super().__init__(task, population, plan, workers or os.cpu_count() or 1)

    def execute(self, call: Call) -> Iterator[Chunk]:
        if in_script(call.method) and not in_script(self.task):
            raise ValueError(
                f"method={type(call.method).__name__} should be in a module of its own, not in the script, to run in "
                "worker processes; or choose engine = 'stacked' or 'serial'"
            )
        yield from super().execute(call)

    def place(self, population: Population) -> None:
        self._shards = (_shared(population.train), _shared(population.test))

    def spawn(self) -> _Member:
        here, there = self._context.Pipe()
        args = (there, self.task, *self._shards, self.plan)
        process = self._context.Process(target=_serve, args=args, daemon=True)
        with _script_hidden(unless=in_script(self.task)):
            process.start()
        there.close()
        return _Member(process, here)

    def finished(self, busy: list[Any]) -> list[Any]:
        ready = wait([member.pipe for member in busy])
        return [member for member in busy if member.pipe in ready]


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

    def send(self, job: Job) -> None:
        try:
            self.pipe.send(job)
        except OSError as e:
            raise Gone(type(e).__name__) from e

    def receive(self) -> tuple[bool, Any]:
        try:
            ok, got = self.pipe.recv()
        except (EOFError, OSError, RuntimeError) as e:
            raise Gone(type(e).__name__) from e
        return ok, got

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _shared(shards: Shards) -> Shards:
    return Shards(*(t.share_memory_() for t in (shards.x, shards.y, shards.rows, shards.offsets)))


def _serve(pipe: Connection, task: Task, train: Shards, test: Shards, plan: Plan) -> None:
    """A worker's life: take a job, answer it, until the pipe ends."""
    torch.set_num_threads(1)
    keep_memory()
    worker = Worker(task, train, test, plan)
    while True:
        try:
            kind, head, shared, own = pipe.recv()
        except (EOFError, OSError):
            return
        ok, got = answer(worker, kind, head, shared.value(), own.value())
        pipe.send((ok, Block.of(got) if ok else got))
