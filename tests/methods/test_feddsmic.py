"""FedDS and FedDSMIC: assignment and MAML steps by hand, the traps, and recovery of planted clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.evaluate.served import personal_models
from clusterfl.loop import Simulation
from clusterfl.methods import FedAvg, FedDS, FedDSMIC
from clusterfl.methods.feddsmic import Indicated
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.parts.start import first_net
from clusterfl.record import Outcome, Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import repeat, row

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
PAPER = SGD(lr=0.01, momentum=0.9, steps=20, batch=32)
IDS = torch.arange(12)
BOTH = pytest.mark.parametrize("make", [FedDS, FedDSMIC])


def digits(seed: int = 0, shift: str = "rotate", unseen: int = 0) -> tuple[Task, Any]:
    config = DataConfig(clients=24, clusters=4, shift=shift, unseen=unseen, samples=150, indicators=10)
    population = build(config, keys.key(seed))
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    assert population.indicators is not None
    return task.with_public(population.indicators[0]), population


def simulate(method: Any, task: Task, population: Any, rounds: int) -> tuple[Simulation, Outcome]:
    run = Simulation(method, population, Stacked(task, population), Schedule(rounds, eval_every=rounds))
    return run, run.run()


# -- the rules -------------------------------------------------------------------------------------------


def test_one_centre_is_fedavg() -> None:
    one = {"k": 1, "local": LOCAL, "start": "independent"}
    check_same(FedDS(**one), FedAvg(LOCAL))
    check_same(FedDS(**one, weights="uniform"), FedAvg(LOCAL, weights="uniform"))


def test_no_look_ahead_is_fedds() -> None:
    check_same(FedDSMIC(k=2, local=LOCAL, warmup=1, inner_lr=0.0), FedDS(k=2, local=LOCAL, warmup=1))


@BOTH
def test_a_round_by_hand(make: Any) -> None:
    """scipy's KL and numpy's weighted means of the models that the same clients send."""
    method = make(k=3, local=LOCAL, start="random-partition", warmup=0)
    task, population = small_task(), small_population()
    engine = Serial(task, population)
    state = play(method, engine, 0)
    sent = engine.cohort(IDS, keys.key(5)).run(
        method.client_update, theta={n: t[state.assign] for n, t in state.centers.items()}
    )
    assert sent["n"].tolist() == population.train.sizes[:12].tolist()
    models = [
        [task.probabilities(row(t, i), state.indicators).detach() for i in range(len(next(iter(t.values()))))]
        for t in (sent["theta"], state.centers)
    ]
    d = np.array([[sum(entropy(p, q, axis=1)) for q in models[1]] for p in models[0]])
    s = torch.as_tensor(d.argmin(1))
    after = method.round(state, engine.cohort(IDS, keys.key(5)))
    assert after.assign.tolist() == s.tolist()
    for n, t in sent["theta"].items():
        for k in range(3):
            mine = s == k
            mean = np.average(t[mine], axis=0, weights=sent["n"][mine]) if mine.any() else state.centers[n][k]
            torch.testing.assert_close(after.centers[n][k], torch.as_tensor(mean, dtype=torch.float32))


def test_a_client_update_is_algorithm_2() -> None:
    """One shared batch with everything in it, so that the two steps can be written out."""
    task, population = small_task(), small_population()
    rule = SGD(lr=0.2, batch=64, steps=2, momentum=0.9)
    method = FedDSMIC(k=2, local=rule, inner_lr=0.5, independent=False)
    start = task.init(keys.key(1))
    got = Serial(task, population).cohort(IDS[:1], keys.key(2)).run(method.client_update, {"theta": start})["theta"]
    x, y = population.train.of(0)
    w = {n: t.clone() for n, t in start.items()}
    speed = {n: torch.zeros_like(t) for n, t in start.items()}
    gradient = torch.func.grad(lambda theta: task.loss(theta, x, y))
    for _ in range(2):
        g = gradient(w)
        g = gradient({n: w[n] - 0.5 * g[n] for n in w})  # eqs. 15, 16: no momentum in the inner step
        speed = {n: 0.9 * speed[n] + g[n] for n in w}
        w = {n: w[n] - 0.2 * speed[n] for n in w}
    for n, t in w.items():
        torch.testing.assert_close(got[n][0], t, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_personal_model_is_some_plain_steps_from_the_centre(steps: int) -> None:
    task, population = small_task(), small_population()
    engine, rule = Serial(task, population), SGD(lr=0.2, batch=64, momentum=0.9, weight_decay=0.1, epochs=1)
    method = FedDSMIC(k=2, local=rule, inner_lr=0.3, personal_steps=steps)
    served = method.serve(play(method, engine, 1), IDS)
    assert served.personal
    theta = row(served.models, int(served.index[0]))
    ((_, got),) = personal_models(engine, method, replace(served, index=served.index[:1]), IDS[:1], keys.key(2))
    x, y = population.train.of(0)
    for _ in range(steps):
        g = torch.func.grad(lambda w: task.loss(w, x, y))(theta)
        theta = {n: theta[n] - 0.3 * g[n] for n in theta}
    for n, t in theta.items():
        torch.testing.assert_close(got[n][0], t, rtol=1e-4, atol=1e-6)


def test_shared_and_independent_batches_differ() -> None:
    task, population = small_task(), small_population()
    start = task.init(keys.key(1))
    found = [
        Serial(task, population)
        .cohort(IDS[:1], keys.key(2))
        .run(FedDSMIC(k=2, local=LOCAL, inner_lr=0.1, independent=i).client_update, {"theta": start})["theta"]
        for i in (True, False)
    ]
    assert not torch.equal(found[0]["0.weight"], found[1]["0.weight"])


@BOTH
def test_clients_stay_where_they_are_until_the_warmup_ends(make: Any) -> None:
    """From a random partition, which the answers would change at once."""
    task, population = small_task(), small_population()
    few, none = (make(k=3, local=LOCAL, start="random-partition", warmup=w) for w in (2, 0))
    start = play(few, Serial(task, population), 0)
    assert play(none, Serial(task, population), 1).assign.tolist() != start.assign.tolist()
    assert play(few, Serial(task, population), 2).assign.tolist() == start.assign.tolist()
    assert play(few, Serial(task, population), 3).assign.tolist() != start.assign.tolist()


@BOTH
def test_without_public_samples_the_remedy_is_named(make: Any) -> None:
    task, population = small_task().with_public(None), small_population()
    with pytest.raises(ValueError, match=r"task.public=None should be .* --set data\.indicators=10 \(per class\)"):
        play(make(k=2), Serial(task, population), 0)


@BOTH
def test_wrong_parameters_are_named(make: Any) -> None:
    for name, value in (("k", 0), ("weights", "n"), ("warmup", -1), ("admit_epochs", 0)):
        with pytest.raises(ValueError, match=f"{name}={value!r} should be"):
            make(**{name: value})
    for name, value in (("inner_lr", -1.0), ("personal_steps", 0)):
        with pytest.raises(ValueError, match=f"{name}={value!r} should be"):
            FedDSMIC(**{name: value})


def test_lost_newcomers_wait_in_the_first_cluster() -> None:
    task, population, method = small_task(), small_population(), FedDS(k=2, local=LOCAL)
    engine = Serial(task, population)
    state = play(method, engine)
    ids = torch.tensor([13, 12])
    served = method.admit(state, Flaky(engine, 0.0, frozenset({13})).cohort(ids, keys.key(1)))
    whole = method.admit(state, engine.cohort(ids, keys.key(1)))
    assert served.index.tolist() == [0, int(whole.index[1])]


# -- the traps -------------------------------------------------------------------------------------------


def test_a_small_perceptron_does_not_find_the_clusters_from_independent_starts() -> None:
    """Each centre answers in its own way, which its own clients keep: hardly any id changes after a few rounds."""
    task, population = digits()
    run, outcome = simulate(FedDS(start="independent", local=PAPER, warmup=0), task, population, 8)
    assert outcome.clusters is not None and outcome.clusters.ari < 0.7
    assert all(r.moved == 0 for r in run.records[-2:])


@pytest.mark.parametrize("seed", range(2))
def test_independent_starts_do_not_freeze_a_linear_model(seed: int) -> None:
    """The paper's own model and split, in small: half of the clients leave their random cluster."""
    config = DataConfig(clients=20, clusters=3, split="class_groups", shift="none", alpha=0.5, indicators=1, test="own")
    population = build(config, keys.key(seed))
    assert population.indicators is not None
    task = Task(build_model("mclr", population.input_shape, 10), 10).with_public(population.indicators[0])
    run, _ = simulate(FedDS(k=3, start="independent", local=PAPER, warmup=0), task, population, 3)
    assert run.records[1].moved is not None and run.records[1].moved >= 0.4


@BOTH
def test_identical_centres_collapse_into_the_first(make: Any) -> None:
    task, population = digits()
    assert task.public is not None
    start = Indicated(repeat(first_net(task, keys.key(3)), 4), torch.arange(24) % 4, task.public)
    cohort = Stacked(task, population).cohort(torch.arange(24), keys.key(4))
    after = make(warmup=0).round(start, cohort)
    assert cohort.logged["ties"] == 24 and cohort.logged["clusters_alive"] == 1
    assert after.assign.eq(0).all()
    assert_equal({n: t[1:] for n, t in after.centers.items()}, {n: t[1:] for n, t in start.centers.items()}, "empty")


# -- recovery --------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("shift", ["rotate", "swap_labels"])
def test_recovers_planted_clusters(make: Any, shift: str) -> None:
    task, population = digits(1, shift, unseen=8)
    _, outcome = simulate(make(local=PAPER, warmup=2), task, population, 6)
    assert outcome.clusters is not None and outcome.clusters.ari == 1.0
    assert outcome.accuracy.mean > 0.85
    assert outcome.unseen_assign is not None and population.truth is not None
    assert clustering(outcome.unseen_assign, population.truth[24:]).ari > 0.5


def test_a_personal_step_helps_where_labels_are_skewed() -> None:
    config = DataConfig(clients=12, clusters=1, shift="none", samples=60, alpha=2.0, indicators=1, test="own")
    population = build(config, keys.key(0))
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    assert population.indicators is not None
    task = task.with_public(population.indicators[0])
    method = FedDSMIC(k=1, local=PAPER, inner_lr=0.1, personal_steps=3)
    _, outcome = simulate(method, task, population, 4)
    _, plain = simulate(replace(method, inner_lr=0.0), task, population, 4)
    assert outcome.accuracy.mean > plain.accuracy.mean
