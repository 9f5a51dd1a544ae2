"""Interleaved timing: a machine drifts, so everything that is compared runs in one go, turn by turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing as mp

from clusterfl import keys
from clusterfl.bench.peers import Peers
from clusterfl.bench.workloads import WORKLOADS, Workload, plain_loop, population
from clusterfl.data.population import Population, Shards
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

BUSY = 0.5  # runnable processes per core from which a machine is not ours
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
    load: float  # runnable processes per core before it began
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


def load_per_core() -> float:
    """Runnable processes of the last minute, over the cores that we may use; 0 where the system does not tell."""
    return os.getloadavg()[0] / usable_cores() if hasattr(os, "getloadavg") else 0.0


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


def peak_mb(engine: BaseEngine) -> float:
    """Peak resident memory of this process and the engine's workers (shared pages counted once per process)."""
    pids = [os.getpid()]
    if isinstance(engine, Pool):
        pids += [member.process.pid for member in engine._members]
    return sum(_peak_kb(pid) for pid in pids) / 1024


def _peak_kb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1])
    except OSError:
        pass
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@dataclass(frozen=True)
class Scale:
    """One point of the scaling curve: ``clients`` in all, the same number of them asked each round."""

    clients: int
    seconds: float  # per round
    peak_mb: float
    grown_mb: float  # resident memory after the last round minus after the second
    first_evaluation: float  # seconds of the first measurement of all clients, which finds out who shares samples
    evaluation: float  # seconds of each after it

    def json(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "seconds": self.seconds,
            "first_evaluation_seconds": self.first_evaluation,
            "evaluation_seconds": self.evaluation,
            "peak_mb": self.peak_mb,
            "grown_mb": self.grown_mb,
        }


def scale(clients: int, sampled: int, rounds: int) -> Scale:
    """Rounds of FedAvg on ``digits`` with a fixed number of sampled clients; run it in a process of its own."""
    from clusterfl.data.scenario import DataConfig, build

    config = DataConfig(source="digits", clients=clients, samples=20, clusters=4)
    pop = build(config, keys.key(0))
    work = replace(WORKLOADS["mclr"], samples=20, batch=10, steps=2)
    from clusterfl.models import build_model
    from clusterfl.task import Task

    task = Task(build_model("mclr", pop.input_shape, pop.classes), pop.classes)
    method, engine = (
        FedAvg(local=work.rule),
        Serial(task, pop, choose(task, pop, work.rule, per_round=sampled, rounds=1).plan),
    )
    state = method.init(task, engine.cohort(torch.arange(clients), keys.key(1)), keys.key(0))
    taken, scoring, early, everybody = [], [], 0.0, torch.arange(clients)
    for r in range(rounds):
        began = time.perf_counter()
        ids = keys.choice(keys.fold_in(keys.key(4), r), clients, sampled)
        state = method.round(state, engine.cohort(ids, keys.fold_in(keys.key(2), r), r))
        taken.append(time.perf_counter() - began)
        began = time.perf_counter()
        evaluate(engine, method, method.serve(state, everybody), everybody, keys.key(3), r)
        scoring.append(time.perf_counter() - began)
        if r == 1:
            early = _resident_mb()
    grown, peak = _resident_mb() - early, _peak_kb(os.getpid()) / 1024
    return Scale(clients, statistics.median(taken), peak, grown, scoring[0], statistics.median(scoring[1:] or scoring))


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return float(line.split()[1]) / 1024
    return 0.0
