"""``engine = "auto"``: which plan is fastest here is measured, not believed.

A few local steps of a few clients are timed eagerly (dense and channels-last) and stacked (several chunk
sizes); whether worker processes pay is worked out from the time a round would take and how many rounds
there are. The choice is cached by model, shapes and machine, said in one log line and written into the
run's resolved config, so that a rerun or a resume repeats the same arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import platformdirs
import torch
from torch import nn

from clusterfl import __version__, keys
from clusterfl.call import Call
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.chunks import Plan
from clusterfl.engines.worker import Worker
from clusterfl.parts.local import SGD, Train
from clusterfl.task import Task

log = logging.getLogger(__name__)

STEPS = 3  # local steps per timing
TRIES = 5  # timings, of which the best counts
START = 3.0  # seconds to start worker processes
CALL = 0.01  # seconds that a call through worker processes costs by itself


@dataclass(frozen=True)
class Choice:
    """A plan, how many processes share it (1: none but this one), and what a client's step takes under it."""

    plan: Plan
    workers: int
    step: float


def choose(
    task: Task,
    population: Population,
    rule: SGD,
    *,
    per_round: int,
    rounds: int,
    alone: bool = False,
    fresh: bool = False,
) -> Choice:
    """The fastest plan for this model and these clients on this machine; ``alone``: in this process; ``fresh``:
    whatever the cache says."""
    cores = 1 if alone else usable_cores()
    place = _cache_file(task, population, rule, per_round, cores)
    timed = None if fresh else _cached(place)
    if timed is None:
        plans = list(candidates(task, per_round, cores, wide=rule.steps is not None and _ragged(population)))
        timed = list(zip(plans, measure(task, population, plans, rule, per_round), strict=True))
        _store(place, timed)
    plan, step = min(timed, key=lambda p: p[1])
    sizes = population.train.sizes[: population.clients]
    steps = rule.batches_of(int(sizes.float().mean())) * per_round
    here = rounds * steps * step
    shared = START + rounds * (CALL + steps * step / cores)
    workers = cores if cores > 1 and per_round > 1 and shared < here else 1
    log.info("engine auto: %s", describe(plan, workers, step))
    return Choice(plan, workers, step)


def describe(plan: Plan, workers: int, step: float) -> str:
    where = f"in {workers} processes" if workers > 1 else "in this process"
    return f"{describe_plan(plan)}, {where} ({step * 1e3:.2f} ms per client and step)"


def describe_plan(plan: Plan) -> str:
    how = f"stacked, {plan.chunk} clients at a time" if plan.stacked else "one client at a time"
    wide = f" (sizes up to {plan.spread:g} times apart)" if plan.stacked and plan.spread != Plan.spread else ""
    return how + wide + (", channels last" if plan.channels_last else "")


def candidates(task: Task, per_round: int, cores: int, *, wide: bool = False) -> Iterator[Plan]:
    """Plans worth timing; chunks no larger than one worker's share of a round.

    ``wide``: also chunks of clients whose sizes differ more, which costs little where a client's steps do not
    depend on its size.
    """
    yield Plan()
    share = max(1, -(-per_round // cores))
    if convolutional(task):
        yield Plan(channels_last=True)
        chunks = [8]  # stacking wins little on convolutions, but sometimes on tiny ones
    else:
        chunks = [4, 10, 25, 50, 100]
    for chunk in sorted({min(c, share) for c in chunks} - {1}):
        for spread in (Plan.spread, 4.0) if wide else (Plan.spread,):
            yield Plan(stacked=True, chunk=chunk, spread=spread)


def _ragged(population: Population) -> bool:
    sizes = population.train.sizes[: population.clients]
    return bool(sizes.max() > Plan.spread * sizes.min())


def convolutional(task: Task) -> bool:
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in task.module.modules())


def measure(task: Task, population: Population, plans: Sequence[Plan], rule: SGD, per_round: int) -> list[float]:
    """Seconds per client and local step of each plan: the best of a few short tries, in turns."""
    trials = [_trial(task, population, plan, rule, per_round) for plan in plans]
    best = [float("inf")] * len(plans)
    for _ in range(TRIES):
        best = [min(b, trial()) for b, trial in zip(best, trials, strict=True)]
    return best


def _trial(task: Task, population: Population, plan: Plan, rule: SGD, per_round: int) -> Callable[[], float]:
    """Clients as a round would meet them: where sizes differ, a plan that stacks pays for it here too."""
    some = population.train.sizes[: population.clients].nonzero().flatten()  # a client without data is never asked
    m = min(max(plan.chunk, 8) if plan.stacked else 2, per_round, len(some))
    ids = some[keys.choice(keys.fold_in(keys.key(0), "calibration"), len(some), m)]
    parts = [population.train.of(i) for i in ids.tolist()]
    worker = Worker(task, Shards.from_parts(parts), Shards.from_parts([(x[:1], y[:1]) for x, y in parts]), plan)
    short = replace(rule, epochs=None, steps=STEPS)
    call = Call(Train(short), "train", torch.arange(m), {"theta": task.init(keys.key(0))}, {}, keys.key(0), 0)

    def trial() -> float:
        began = time.perf_counter()
        for _ in worker.run(call):
            pass
        return (time.perf_counter() - began) / (m * STEPS)

    return trial


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- the cache -------------------------------------------------------------------------------------------


def _cache_file(task: Task, population: Population, rule: SGD, per_round: int, cores: int) -> Path:
    shapes = [(n, tuple(p.shape)) for n, p in task.module.named_parameters()]
    steps = (rule.batch, rule.momentum, rule.steps is None, *filter(None, [rule.optimizer and rule.optimizer.name]))
    what = (repr(task.module), shapes, population.input_shape, steps, min(per_round, 100 * cores))
    sizes = population.train.sizes[: population.clients].double()
    spread = [int(q) for q in sizes.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))]
    where = (__version__, spread, torch.__version__, cores, platform.machine(), platform.processor())
    digest = hashlib.sha256(repr((what, where)).encode()).hexdigest()[:24]
    return Path(platformdirs.user_cache_dir("clusterfl")) / "engines" / f"{digest}.json"


def _cached(path: Path) -> list[tuple[Plan, float]] | None:
    try:
        return [(Plan(**entry["plan"]), float(entry["step"])) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, timed: list[tuple[Plan, float]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([{"plan": asdict(plan), "step": step} for plan, step in timed]))
    except OSError as e:
        log.debug("the calibration is not cached: %s", e)
