"""Worker processes with one thread each; shards lie in shared memory, client state with the parent."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import multiprocessing as mp

from clusterfl.call import Call, Chunk
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.blocks import Block, Copied, own_memory, shared_memory, travelling
from clusterfl.engines.chunks import Plan
from clusterfl.engines.memory import keep_memory
from clusterfl.engines.parallel import Gone, Job, Parallel, answer
from clusterfl.engines.worker import Worker
from clusterfl.errors import ClusterflError
from clusterfl.task import Task

log = logging.getLogger(__name__)


class Pool(Parallel):
    """``workers`` processes (default: one per core), each with one thread."""

    def __init__(
        self, task: Task, population: Population, plan: Plan | None = None, workers: int | None = None
    ) -> None:
        self._context = mp.get_context("spawn")
        self._copies = False  # whether a message has found no shared memory
        super().__init__(task, population, plan, workers or os.cpu_count() or 1)

    def execute(self, call: Call) -> Iterator[Chunk]:
        if in_script(call.method) and not in_script(self.task):
            raise ValueError(
                f"method={type(call.method).__name__} should be in a module of its own, not in the script, to run in "
                "worker processes; or choose engine = 'stacked' or 'serial'"
            )
        yield from super().execute(call)

    def place(self, population: Population) -> None:
        try:
            self._shards = (_shared(population.train), _shared(population.test))
        except RuntimeError as e:
            raise NoRoom(e) from e

    def spawn(self) -> _Member:
        try:
            here, there = self._context.Pipe()
            args = (there, self.task, *self._shards, self.plan, _slots_each(self.workers))
            process = self._context.Process(target=_serve, args=args, daemon=True)
            with _script_hidden(unless=in_script(self.task)), uninterrupted():
                process.start()
        except (RuntimeError, OSError) as e:
            if not _exhausted(e):
                raise
            raise NoRoom(e) from e
        there.close()
        return _Member(process, here)

    def respawn(self) -> _Member | None:
        try:
            return self.spawn()
        except NoRoom as e:
            left = len(self._members) - 1
            if not left:
                raise
            log.warning("%s: no worker starts in place of one that is gone, and %d go on", e, left)
            return None

    def finished(self, busy: list[Any], timeout: float) -> list[Any]:
        ready = wait([member.pipe for member in busy], timeout)
        return [member for member in busy if member.pipe in ready]

    def pack(self, value: Any) -> Any:
        packed = travelling(Block.of(value, shared_memory))
        if isinstance(packed, Copied) and not self._copies:
            log.warning("%s: messages to worker processes are copied, which takes longer", little_room())
            self._copies = True
        return packed


class NoRoom(ClusterflError):
    """Worker processes cannot share what clients hold."""

    def __init__(self, cause: BaseException | str = "") -> None:
        why = "too few files may be open (ulimit -n)" if isinstance(cause, OSError) else little_room()
        super().__init__(f"{why}: worker processes cannot share the clients' data ({cause})")


def _exhausted(error: RuntimeError | OSError) -> bool:
    """Whether there was too little to share or to open, and not something else that is wrong."""
    return error.errno in (errno.EMFILE, errno.ENFILE) if isinstance(error, OSError) else "shared memory" in str(error)


def little_room() -> str:
    """How much memory can be shared, in words."""
    try:
        free = shutil.disk_usage("/dev/shm").free / 2**20
    except OSError:
        return "/dev/shm is not there"
    return f"/dev/shm has {free:.0f} MB left"


def _slots_each(workers: int) -> int:
    """Answers that a worker may have in shared memory at a time: each costs an open file, here and there."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, limit // (4 * workers)) if limit > 0 else 1 << 16


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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C is for the parent, which ends its workers: those that start within this never hear of it."""
    resource_tracker.ensure_running()  # the first worker would start it, which lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(eq=False)
class _Member:
    process: Any
    pipe: Connection
    slots: list[Any] = field(default_factory=list)  # the worker's memory for answers, as arrays
    free: list[int] = field(default_factory=list)  # slots that nothing here looks at any more

    def send(self, job: Job) -> None:
        freed = [self.free.pop() for _ in range(len(self.free))]
        try:
            self.pipe.send((freed, *job))
        except OSError as e:
            raise Gone(type(e).__name__) from e

    def receive(self) -> tuple[bool, Any]:
        try:
            ok, got, *place = self.pipe.recv()
        except (EOFError, OSError, RuntimeError) as e:
            raise Gone(type(e).__name__) from e
        return ok, self._lease(got, *place) if ok else got

    def _lease(self, layout: Any, number: int, fresh: Tensor | None) -> Block | Copied:
        """The answer in its slot, which is free again once the last tensor that looks into it is gone."""
        if isinstance(layout, Copied):
            return layout
        if fresh is not None:
            self.slots.append(fresh.numpy())
        view = self.slots[number][:]
        weakref.finalize(view, self.free.append, number).atexit = False
        return Block(torch.from_numpy(view), layout)

    def stopped(self) -> bool:
        try:  # "pid (name) state …", where a name may hold anything
            state = Path(f"/proc/{self.process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state in ("T", "t")

    def end(self) -> None:
        self.process.kill()  # a stopped process heeds nothing less; before its pipe ends, which would be an error there
        self.pipe.close()
        self.process.join()


def _shared(shards: Shards) -> Shards:
    rows = shards.rows.share_memory_() if isinstance(shards.rows, Tensor) else shards.rows  # a rule travels as it is
    return Shards(shards.x.share_memory_(), shards.y.share_memory_(), rows, shards.offsets.share_memory_())


def _serve(pipe: Connection, task: Task, train: Shards, test: Shards, plan: Plan, most: int) -> None:
    """A worker's life: take a job, answer it, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_memory()
    worker = Worker(task, train, test, plan)
    slots = _Slots(most)
    while True:
        try:
            freed, kind, head, shared, own = pipe.recv()
        except (EOFError, OSError):
            return
        slots.free.update(freed)
        ok, got = answer(worker, kind, head, shared.value(), own.value())
        if not ok:
            pipe.send((False, got))
            continue
        block = travelling(Block.of(got, slots.room))
        pipe.send((True, block if isinstance(block, Copied) else block.layout, *slots.taken()))


class _Slots:
    """A worker's shared memory for answers, used again and again: new memory costs a page fault every 4 KB, in the
    worker and in the parent, and a file handle that travels. Where there is none left, answers travel as bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.memory: list[Tensor] = []
        self.free: set[int] = set()
        self._last, self._fresh = 0, False

    def room(self, size: int) -> Tensor:
        """The smallest free slot that is large enough, or a new one, or memory of our own."""
        fitting = [(len(self.memory[j]), j) for j in self.free if size <= len(self.memory[j]) <= max(4 * size, 1 << 16)]
        self._fresh = not fitting
        if fitting:
            self._last = min(fitting)[1]
            self.free.remove(self._last)
            return self.memory[self._last]
        new = shared_memory(max(size, 1 << 16)) if len(self.memory) < self.most else own_memory(size)
        self._fresh = new.is_shared()
        if self._fresh:
            self._last = len(self.memory)
            self.memory.append(new)
        return new

    def taken(self) -> tuple[int, Tensor | None]:
        """The slot of the last answer: its number, and its memory where the parent has not seen it yet."""
        return self._last, self.memory[self._last] if self._fresh else None
