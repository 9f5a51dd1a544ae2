"""Local: everybody alone, those who come late as long as the others."""

from __future__ import annotations

import torch

from clusterfl import keys
from clusterfl.call import Call
from clusterfl.engines import Flaky, Serial
from clusterfl.loop import Simulation
from clusterfl.methods import Local
from clusterfl.parts.local import SGD, sgd
from clusterfl.record import Schedule
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLIENTS, UNSEEN, small_population, small_task
from clusterfl.tree import Tree

LOCAL = Local(local=SGD(lr=0.1, batch=10, lr_decay=0.5))
NEW = torch.arange(CLIENTS, CLIENTS + UNSEEN)


def test_a_client_trains_alone_and_sends_nothing() -> None:
    engine = Serial(small_task(), small_population())
    sim = Simulation(LOCAL, engine.population, engine, Schedule(rounds=3, seed=1))
    sim.run()
    assert engine.traffic.total_up == engine.traffic.total_down == 0
    one = engine.states()[4]
    assert any(not torch.equal(t, engine.states()[5][n]) for n, t in one.items())


def test_a_newcomer_trains_as_many_rounds_as_the_run_had() -> None:
    """By hand: one training after another, each with its round's step size and its own batches."""
    engine = Serial(small_task(), small_population())
    cohort = engine.cohort(NEW, keys.key(5), 3)
    LOCAL.admit(LOCAL.init(engine.task, cohort, keys.key(0)), cohort)
    for j, i in enumerate(NEW.tolist()):
        theta: Tree | None = None
        for t in range(3):
            call = Call(LOCAL, "train", NEW, {}, {}, keys.fold_in(cohort.key, "call", t + 1), t)
            me = engine.worker._client(call, j)
            with torch.no_grad():
                theta = sgd(me, theta or me.task.init(me.key), LOCAL.local)
        assert theta is not None
        assert_equal({f"theta/{n}": t for n, t in theta.items()}, engine.states()[i], f"client {i}")


def test_newcomers_do_as_well_as_the_others() -> None:
    engine = Serial(small_task(), small_population())
    method = Local(local=SGD(lr=0.1, batch=10))
    outcome = Simulation(method, engine.population, engine, Schedule(rounds=15)).run()
    assert outcome.unseen is not None
    assert float(outcome.unseen.mean()) > outcome.accuracy.mean - 0.1 > 0.6


def test_newcomers_survive_drop_outs() -> None:
    engine = Flaky(Serial(small_task(), small_population()), 0.7)
    outcome = Simulation(LOCAL, engine.population, engine, Schedule(rounds=6)).run()
    assert outcome.unseen is not None and bool(outcome.unseen.isfinite().all())
