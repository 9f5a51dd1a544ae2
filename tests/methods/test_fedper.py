"""FedPer: heads stay at home."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Serial
from clusterfl.evaluate.served import evaluate
from clusterfl.evaluate.shared import score
from clusterfl.methods import FedAvg, FedPer
from clusterfl.methods.fedper import tail
from clusterfl.parts.local import SGD
from clusterfl.parts.start import first_net
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import nbytes

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_without_a_head_it_is_fedavg() -> None:
    check_same(FedPer(LOCAL, layers=0), FedAvg(LOCAL))


def test_the_head_is_never_sent_and_never_averaged() -> None:
    task = small_task()
    engine = Serial(task, small_population())
    state = play(FedPer(LOCAL), engine)
    start = first_net(task, keys.key(7))
    heads = engine.states()
    assert tail(task, 1) == task.head
    for n in task.head:
        assert torch.equal(state.theta[n], start[n])  # the server's stand-in is as it was drawn
        assert not torch.equal(heads[0][f"head/{n}"], heads[1][f"head/{n}"])
    body = sum(nbytes(t) for n, t in start.items() if n not in task.head)
    assert engine.traffic.total_down == 2 * 12 * body
    assert engine.traffic.total_up == 2 * 12 * (body + 4)


def test_a_client_serves_its_own_head_and_a_newcomer_a_tuned_one() -> None:
    task, population = small_task(), small_population()
    engine, method, ids = Serial(task, population), FedPer(LOCAL), torch.arange(12)
    state = play(method, engine, rounds=8)
    own = evaluate(engine, method, method.serve(state, ids), ids, keys.key(0))
    alone = score(engine, method.serve(state, ids).models, torch.zeros(12, dtype=torch.int64), ids)
    assert (
        float(own.sums["correct"].sum() / own.samples.sum())
        > float(alone.sums["correct"].sum() / alone.samples.sum()) + 0.3
    )
    new = torch.arange(12, 14)
    served = method.admit(state, engine.cohort(new, keys.key(2)))
    scores = evaluate(engine, method, served, new, keys.key(3))
    assert float(scores.sums["correct"].sum() / scores.samples.sum()) > 0.8
    assert set(engine.states()) == set(range(12))  # measuring keeps nothing


def test_layers_are_counted_from_the_end() -> None:
    task = small_task()
    assert tail(task, 0) == ()
    with pytest.raises(ValueError, match="layers=2 should be below the model's 2: some should be shared"):
        tail(task, 2)
    with pytest.raises(ValueError, match="layers=-1"):
        FedPer(layers=-1)
