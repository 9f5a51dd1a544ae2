"""All engines agree: draws, what clients keep, errors, BatchNorm."""

from __future__ import annotations

import pytest
import torch

from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.errors import ClientError
from clusterfl.methods.fedavg import FedAvg
from clusterfl.testing import assert_close, assert_equal, play, small_population, small_task
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
