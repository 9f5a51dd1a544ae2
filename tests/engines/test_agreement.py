"""All engines agree: draws, what clients keep, errors, BatchNorm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.errors import ClientError
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedprox import FedProx
from clusterfl.parts.local import SGD
from clusterfl.parts.optimizers import Adam, AdamW
from clusterfl.parts.schedules import Cosine
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import play, small_population, small_task
from tests.engines.probe import IDS, RULE, Probe, cohort
from tests.helpers import batch_norm_task


@pytest.mark.parametrize("kind", ["serial", "stacked", "pool"])
def test_an_error_names_procedure_and_client(kind: str, pool: Pool) -> None:
    engine = pool if kind == "pool" else {"serial": Serial, "stacked": Stacked}[kind](small_task(), small_population())
    with pytest.raises(ClientError, match=r"Probe\.fail failed on client 5: ZeroDivisionError: bad luck"):
        cohort(engine).run(Probe().fail, i=IDS)


def test_draws_and_kept_state_are_equal_in_every_engine(pool: Pool) -> None:
    pool.set_states({})
    engines: list[BaseEngine] = [
        Serial(small_task(), small_population()),
        Stacked(small_task(), small_population()),
        Wire(small_task(), small_population()),
        pool,
    ]
    seen = []
    for engine in engines:
        engine.traffic.up.clear(), engine.traffic.down.clear()  # the pool is other tests' too
        first, second = cohort(engine, 1).run(Probe().count), cohort(engine, 2).run(Probe().count)
        assert first["calls"].tolist() == [0] * 12 and second["calls"].tolist() == [1] * 12
        mapped = cohort(engine).map(Probe().square, x=torch.arange(5.0))
        seen.append((second["draw"], mapped["y"], mapped["draw"]))
        assert engine.traffic.total_down == 0 and engine.traffic.total_up == 2 * 12 * 12
    for other in seen[1:]:
        assert_equal(seen[0], other, "draws")
    assert seen[0][1].tolist() == [0, 1, 4, 9, 16]


def test_batch_norm_buffers_travel_and_are_averaged_in_every_engine() -> None:
    population, method = small_population(), FedAvg(local=RULE)
    reference = play(method, Serial(batch_norm_task(), population))
    assert_equal(reference, play(method, Wire(batch_norm_task(), population)), "wire")
    assert_close(reference, play(method, Stacked(batch_norm_task(), population)), "stacked")
    assert int(reference.theta["1.num_batches_tracked"]) > 0
    assert float(reference.theta["1.running_mean"].abs().max()) > 0.0


@pytest.mark.parametrize(
    "rule",
    [
        SGD(lr=0.01, batch=5, epochs=2, optimizer=Adam(), weight_decay=0.01, clip=1.0),
        SGD(lr=0.01, batch=5, steps=7, optimizer=AdamW(beta2=0.99), weight_decay=0.1, schedule=Cosine(4, warmup=1)),
    ],
    ids=["adam", "adamw"],
)
def test_adam_agrees_in_every_engine(rule: SGD, pool: Pool) -> None:
    """Clients of one stack take different numbers of steps: a batch of padding leaves no trace in the moments."""
    population, method = small_population(), FedProx(local=rule, mu=0.1)
    reference = play(method, Serial(small_task(), population))
    assert_equal(reference, play(method, Wire(small_task(), population)), "wire")
    pool.set_states({})
    assert_equal(reference, play(method, pool), "pool")
    assert_close(reference, play(method, Stacked(small_task(), population)), "stacked", 1e-4)


def test_class_weights_and_own_losses_agree_in_every_engine() -> None:
    def task() -> Task:
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        return Task(net, 3, class_weights=[1.0, 0.0, 5.0])

    population, method = small_population(), FedAvg(local=RULE)
    reference = play(method, Serial(task(), population))
    assert_equal(reference, play(method, Wire(task(), population)), "wire")
    with Pool(task(), population, workers=1) as pool:
        assert_equal(reference, play(method, pool), "pool")
    assert_close(reference, play(method, Stacked(task(), population)), "stacked")
    assert not torch.equal(reference.theta["2.bias"], play(method, Serial(small_task(), population)).theta["2.bias"])
