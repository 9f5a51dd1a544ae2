"""Interleaved timing: a machine drifts, so everything that is compared runs in one go, turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing as mp

from clusterfl import keys
from clusterfl.bench.machine import load_per_core, peak_mb
from clusterfl.bench.peers import Peers
from clusterfl.bench.workloads import WORKLOADS, Workload, plain_loop, population
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.auto import candidates, choose, describe, describe_plan, usable_cores
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.pool import Pool, _shared
from clusterfl.engines.serial import Serial
from clusterfl.evaluate.served import evaluate
from clusterfl.method import Method, Single
from clusterfl.methods import METHODS
from clusterfl.methods.fedavg import FedAvg
from clusterfl.tree import Tree

Turn = Callable[[int], float]  # seconds of one repetition

BUSY = 0.5  # the share of its cores that others keep busy from which a machine is not ours
UNSTEADY = 2.5  # the longest turn over the shortest from which a median says little


@dataclass(frozen=True)
class Result:
    """Medians of one workload. ``loop`` is one process with all threads, ``limit`` one process per core."""

    workload: str
    data: str
    engine: str
    seconds: float
    loop: float
    limit: float
    evaluation: float
    peak_mb: float
    load: float  # how busy others kept each core before it began
    spread: float  # the longest turn over the shortest, of whichever of ours, loop and limit varied most
    training: float | None = None  # a FedAvg round of the same local training, for methods that do more
    peers: dict[str, float] | None = None  # other simulators, where they were asked for
    missing: dict[str, str] | None = None  # those that are not installed, and their packages

    @property
    def quiet(self) -> bool:
        """Whether the machine was ours: where cores are taken, a loop with all threads collapses and a ratio lies."""
        return self.load <= BUSY and self.spread <= UNSTEADY

    def json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "speedup_vs_loop": self.loop / self.seconds if self.quiet else None,
            "speedup_vs_limit": self.limit / self.seconds if self.quiet else None,
            "load": self.load,
            "spread": self.spread,
            "loop_seconds": self.loop,
            "limit_seconds": self.limit,
            "training_seconds": self.training,
            "times_training": None if self.training is None else self.seconds / self.training,
            "evaluation_seconds": self.evaluation,
            "peak_mb": self.peak_mb,
            "engine": self.engine,
            "data": self.data,
            **({} if self.peers is None else {"peers": self.peers, "peers_not_installed": self.missing}),
        }


def bench(work: Workload, root: Path | None, repeats: int, *, peers: bool = False) -> Result:
    """Times a workload beside the plain loop and the loop in one process per core, and other simulators."""
    load = load_per_core()
    pop, data = population(work, root)
    task = work.task()
    choice = choose(task, pop, work.rule, per_round=work.clients, rounds=10_000, fresh=True)
    method = make_method(work)
    start = task.init(keys.key(0))
    with ExitStack() as stack:
        engine: BaseEngine = (
            Pool(task, pop, choice.plan, choice.workers) if choice.workers > 1 else Serial(task, pop, choice.plan)
        )
        stack.callback(engine.close)
        limit = stack.enter_context(limit_loop(work, pop, start))
        ids = torch.arange(work.clients)
        state = method.init(task, engine.cohort(ids, keys.key(1)), keys.key(0))
        scoring: list[float] = []

        def ours(turn: int) -> float:
            nonlocal state
            torch.set_num_threads(1)
            began = time.perf_counter()
            state = method.round(state, engine.cohort(ids, keys.fold_in(keys.key(2), turn), turn))
            took = time.perf_counter() - began
            began = time.perf_counter()
            evaluate(engine, method, method.serve(state, ids), ids, keys.key(3), turn)
            scoring.append(time.perf_counter() - began)
            return took

        def loop(turn: int) -> float:
            began = time.perf_counter()
            plain_loop(work, pop, range(work.clients), start, usable_cores(), turn)
            return time.perf_counter() - began

        plain = FedAvg(local=work.rule)

        def training(turn: int) -> float:
            torch.set_num_threads(1)
            began = time.perf_counter()
            plain.round(Single(start), engine.cohort(ids, keys.fold_in(keys.key(2), turn), turn))
            return time.perf_counter() - began

        turns = [ours, loop, limit] if work.method == "fedavg" else [ours, loop, limit, training]
        others = Peers(work, pop, start, stack) if peers else None
        measured = interleaved([*turns, *(others.turns() if others else ())], repeats)
        seconds, loop_seconds, limit_seconds, *rest = (statistics.median(t) for t in measured[: len(turns)])
        spread = max(max(t) / min(t) for t in measured[:3])
        peak = peak_mb(engine)
    how = describe(choice.plan, choice.workers, choice.step)
    evaluation = statistics.median(scoring[1:] or scoring)
    return Result(
        work.name,
        data,
        how,
        seconds,
        loop_seconds,
        limit_seconds,
        evaluation,
        peak,
        load,
        spread,
        rest[0] if rest else None,
        others.seconds() if others else None,
        others.missing if others else None,
    )


def bench_plans(work: Workload, root: Path | None, repeats: int) -> dict[str, Any]:
    """Times every plan that ``auto`` chooses from, and how much longer its own choice takes than the best."""
    pop, data = population(work, root)
    cores, method, ids = usable_cores(), FedAvg(local=work.rule), torch.arange(work.clients)
    start = work.task().init(keys.key(0))
    choice = choose(work.task(), pop, work.rule, per_round=work.clients, rounds=10_000, fresh=True)
    plans = list(candidates(work.task(), work.clients, cores))
    torch.set_num_threads(1)
    with ExitStack() as stack:
        engines = [stack.enter_context(Pool(work.task(), pop, plan, cores)) for plan in plans]

        def turn(engine: BaseEngine, r: int) -> float:
            began = time.perf_counter()
            method.round(Single(start), engine.cohort(ids, keys.fold_in(keys.key(2), r), r))
            return time.perf_counter() - began

        seconds = [statistics.median(t) for t in interleaved([partial(turn, engine) for engine in engines], repeats)]
    taken = {describe_plan(plan): took for plan, took in zip(plans, seconds, strict=True)}
    chosen = describe_plan(choice.plan)
    return {"data": data, "plans": taken, "auto": chosen, "times_best": taken[chosen] / min(seconds)}


def make_method(work: Workload) -> Method[Any]:
    if work.method == "fedavg":
        return FedAvg(local=work.rule)
    if work.method.startswith("md-icfl"):  # as it is once its warm-up is over
        warm = work.method.endswith("warm")
        return METHODS["md-icfl"](k=4, local=work.rule, warmup=0, warm=warm)  # type: ignore[call-arg]
    return METHODS[work.method](k=4, local=work.rule)  # type: ignore[call-arg]


def interleaved(turns: list[Turn], repeats: int) -> list[list[float]]:
    """The seconds of each turn by turn, after one round that warms everything up."""
    taken: list[list[float]] = [[] for _ in turns]
    for r in range(repeats + 1):
        for j, turn in enumerate(turns):
            took = turn(r)
            if r:
                taken[j].append(took)
    return taken


@contextmanager
def limit_loop(work: Workload, pop: Population, start: Tree) -> Iterator[Turn]:
    """The plain loop in one process per core with one thread each: the practical limit of plain PyTorch."""
    cores, context = usable_cores(), mp.get_context("spawn")
    train = _shared(pop.train)
    pipes, processes = [], []
    for c in range(cores):
        here, there = context.Pipe()
        part = range(c * work.clients // cores, (c + 1) * work.clients // cores)
        process = context.Process(target=_limit_worker, args=(there, work.name, train, part, start), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)

    def turn(r: int) -> float:
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send(r)
        for pipe in pipes:
            pipe.recv()
        return time.perf_counter() - began

    try:
        yield turn
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            process.terminate()
            process.join()


def _limit_worker(pipe: Connection, name: str, train: Shards, part: range, start: Tree) -> None:
    work = WORKLOADS[name]
    pop = Population(train, train, len(train), 10)
    while True:
        try:
            seed = pipe.recv()
        except (EOFError, OSError):
            return
        total = plain_loop(work, pop, part, start, 1, seed)
        pipe.send({n: t.numpy() for n, t in total.items()})
