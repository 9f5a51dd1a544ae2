"""The pool's workers as Ray actors, on this machine or on a cluster that is already there.

Shards lie in Ray's object store, once per machine; client state lies with the parent. Calls are cut,
answered and put together as in the pool, so the bits are the same.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.data.rules import Rule
from clusterfl.data.shards import Shards
from clusterfl.engines.blocks import Block, own_memory
from clusterfl.engines.chunks import Plan
from clusterfl.engines.memory import keep_memory
from clusterfl.engines.parallel import Gone, Job, Parallel, answer
from clusterfl.engines.worker import Worker
from clusterfl.errors import ClusterflError, ConfigError
from clusterfl.outside import file_modules
from clusterfl.task import Task

log = logging.getLogger(__name__)

START = 60.0  # seconds that an actor may take to find its place


class Ray(Parallel):
    """``workers`` actors (default: one per core of the cluster), each with one core and one thread.

    ``address``: a running cluster ("auto" or "host:port"); without it one is started on this machine, which
    ends with :meth:`close`, unless this process is connected to Ray already.
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        plan: Plan | None = None,
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        self._mine = connect(workers, address)
        try:
            super().__init__(task, population, plan, _fitting(workers))
        except BaseException:
            self._leave()
            raise

    def place(self, population: Population) -> None:
        import ray

        # as arrays the actors of one machine read the very same memory
        sides = (population.train, population.test)
        self._shards = [ray.put([_array(part) for part in (s.x, s.y, s.rows, s.offsets)]) for s in sides]

    def spawn(self) -> _Member:
        import ray

        for module in file_modules():  # a user's code goes along, as no actor finds its file
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        actor = ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        return _Member(actor.remote(self.task, *self._shards, self.plan))

    def respawn(self) -> _Member | None:
        """Where the cluster has lost a node and has no spare core, an actor would wait for ever: fewer go on."""
        import ray

        fresh = self.spawn()
        ready, _ = ray.wait([fresh.actor.ready.remote()], timeout=START)
        if ready:
            return fresh
        fresh.end()
        left = len(self._members) - 1
        if not left:
            raise ClusterflError(
                f"no Ray actor is left, and no core for a new one was free in {START:g} s; resume the run once the "
                "cluster has one"
            )
        log.warning("the Ray cluster has no core for an actor in place of one that is gone: %d go on", left)
        return None

    def finished(self, busy: list[Any], timeout: float) -> list[Any]:
        import ray

        ready, _ = ray.wait([member.answer for member in busy], timeout=timeout)
        return [member for member in busy if member.answer in ready]

    def pack(self, value: Any) -> Any:
        import ray

        return ray.put(Block.of(value, own_memory))

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        import ray

        if self._mine:
            ray.shutdown()
            self._mine = False


def connect(workers: int | None, address: str | None) -> bool:
    """Sees to it that this process is connected to Ray; whether that is ours to end."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "engine.name='ray' should have Ray installed (pip install 'clusterfl[ray]'); name='pool' does without"
        )
    import ray

    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        try:
            with _at_home():
                # "local": even where RAY_ADDRESS names a cluster
                ray.init("local", num_cpus=workers, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except Exception as e:  # Ray's own words are no more than that
            reason = str(e).strip().partition("\n")[0]
            raise ClusterflError(f"Ray could not be started on this machine, so take another engine: {reason}") from e
        return True
    try:
        with _at_home() if address.startswith("127.") else nullcontext():
            ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as e:
        reason = str(e).strip().splitlines()[0]
        raise ConfigError(f"engine.address={address!r} should be a Ray cluster that can be reached: {reason}") from e
    return True


@contextmanager
def _at_home() -> Iterator[None]:
    """A cluster of ours, or one on loopback, reports to nobody and listens to this machine alone."""
    from ray._private import ray_constants

    # on Linux Ray replaces 127.0.0.1 by an address that others can reach, unless this says that there are no others
    with (
        patch.dict(os.environ, RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"),
        patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False),
    ):
        yield


def _fitting(workers: int | None) -> int:
    """As many as were asked for, if the cluster has them: actors beyond that would never start."""
    import ray

    api: Any = ray  # these two are not typed
    cores, free = (int(has.get("CPU", 0)) for has in (api.cluster_resources(), api.available_resources()))
    if workers is not None and workers > cores:
        raise ConfigError(f"engine.workers={workers} should be at most {cores}, the cores of the Ray cluster")
    wanted = cores if workers is None else workers
    if wanted > free:
        log.warning("%d of the Ray cluster's %d cores are free; %d are waited for", free, cores, wanted)
    return wanted


class _Actor:
    """A worker's life, where Ray puts it."""

    def __init__(self, task: Task, train: list[Any], test: list[Any], plan: Plan) -> None:
        torch.set_num_threads(1)
        keep_memory()
        self.worker = Worker(task, _shards(train), _shards(test), plan)

    def ready(self) -> None:
        """Answered once the actor has its place."""

    def answer(self, kind: str, head: Any, shared: Block, own: Block) -> tuple[bool, Any]:
        ok, got = answer(self.worker, kind, head, shared.value(), own.value())
        return ok, Block.of(got, own_memory) if ok else got


def _array(part: Tensor | Rule) -> Any:
    return part.numpy() if isinstance(part, Tensor) else part


def _shards(arrays: list[Any]) -> Shards:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the store's memory is read-only, and nobody writes shards
        return Shards(*(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arrays))


@dataclass(eq=False)
class _Member:
    actor: Any
    answer: Any = field(default=None, init=False)  # of the job it was sent last

    def send(self, job: Job) -> None:
        self.answer = self.actor.answer.remote(*job)

    def receive(self) -> tuple[bool, Any]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            ok, got = ray.get(self.answer)
        except RayTaskError as e:  # it lives, but could not read its job: a module is missing there
            return False, RuntimeError(f"a Ray actor cannot answer: {str(e).strip().splitlines()[-1]}")
        except RayError as e:
            raise Gone(type(e).__name__) from e
        return ok, got

    def stopped(self) -> bool:
        return False

    def end(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self.actor)
