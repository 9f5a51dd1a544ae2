"""The scaling curve: rounds of a fixed size, with more and more clients around them."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from clusterfl import keys
from clusterfl.bench.machine import peak_kb, resident_mb
from clusterfl.bench.workloads import WORKLOADS
from clusterfl.engines.auto import choose
from clusterfl.engines.serial import Serial
from clusterfl.evaluate.served import evaluate
from clusterfl.methods.fedavg import FedAvg


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
            early = resident_mb()
    grown, peak = resident_mb() - early, peak_kb(os.getpid()) / 1024
    return Scale(clients, statistics.median(taken), peak, grown, scoring[0], statistics.median(scoring[1:] or scoring))
