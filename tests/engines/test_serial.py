"""The reference: one client after another."""

from __future__ import annotations

import torch

from clusterfl import keys
from clusterfl.engines import Serial, Wire
from clusterfl.methods.fedavg import FedAvg
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task
from tests.engines.probe import RULE, cohort


def test_traffic_is_payload_per_procedure() -> None:
    engine = Serial(small_task(), small_population())
    theta = engine.task.init(keys.key(0))
    cohort(engine).run(FedAvg(local=RULE).train, {"theta": theta})
    assert engine.traffic.down == {"FedAvg.train": 12 * engine.task.size}
    assert engine.traffic.up == {"FedAvg.train": 12 * (engine.task.size + 4)}
    wire = Wire(small_task(), small_population())
    cohort(wire).run(FedAvg(local=RULE).train, {"theta": theta})
    assert wire.traffic.down == engine.traffic.down
    assert wire.wire_down > wire.traffic.total_down and wire.wire_up > wire.traffic.total_up


def test_fields_are_metered_one_by_one() -> None:
    engine = Serial(small_task(), small_population())
    cohort(engine).run(FedAvg(local=RULE).train, {"theta": engine.task.init(keys.key(0))})
    size = engine.task.size
    assert engine.traffic.fields == {"FedAvg.train.theta": 12 * size, "FedAvg.train.n": 12 * 4}


def test_one_thread_whatever_the_process_has() -> None:
    """Parallelism is across clients: bits do not depend on how many threads PyTorch has, which get theirs back."""
    before = torch.get_num_threads()
    try:
        states = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            states.append(play(FedAvg(local=RULE), Serial(small_task(), small_population())))
            assert torch.get_num_threads() == threads
        assert_equal(*states, "threads")
    finally:
        torch.set_num_threads(before)


def test_a_call_leaves_no_gradients_behind_and_starts_with_none() -> None:
    engine = Serial(small_task(), small_population())
    got = cohort(engine).run(FedAvg(local=RULE).train, {"theta": engine.task.init(keys.key(0))})
    assert not any(t.requires_grad for t in got["theta"].values()) and torch.is_grad_enabled()
