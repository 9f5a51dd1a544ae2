"""FeSEM: its two steps by hand, its traps, and recovery of planted clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.method import Clusters
from clusterfl.methods import FedAvg, FedProx, FeSEM
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.parts.match import chain, permuted
from clusterfl.parts.start import first_net
from clusterfl.record import Outcome, Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method, check_same
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import Tree, flat, repeat, row, stack

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
IDS = torch.arange(12)


def digits(seed: int = 0, shift: str = "rotate", unseen: int = 0) -> tuple[Task, Any]:
    population = build(DataConfig(clients=24, clusters=4, shift=shift, unseen=unseen, samples=150), keys.key(seed))
    return Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10), population


def simulate(method: FeSEM, task: Task, population: Any, rounds: int) -> tuple[Simulation, Outcome]:
    run = Simulation(method, population, Stacked(task, population), Schedule(rounds, eval_every=rounds))
    return run, run.run()


# -- the rules -------------------------------------------------------------------------------------------


def test_one_centre_is_fedavg_and_fedprox() -> None:
    one = {"k": 1, "local": LOCAL, "start": "independent"}
    check_same(FeSEM(**one, proximal=0.0), FedAvg(LOCAL, weights="uniform"))
    check_same(FeSEM(**one, proximal=0.0, weights="size"), FedAvg(LOCAL))
    check_same(FeSEM(**one, proximal=0.3, weights="size"), FedProx(LOCAL, mu=0.3))


def test_matched_fesem_conforms() -> None:
    check_method(FeSEM(k=2, local=LOCAL, matched=True))


@pytest.mark.parametrize("layers", ["all", "last"])
def test_a_round_by_hand(layers: Any) -> None:
    """Numpy's nearest centres and means of the models that the same clients send."""
    method = FeSEM(k=3, local=LOCAL, distance_layers=layers, start="random-partition")
    task, engine = small_task(), Serial(small_task(), small_population())
    state = play(method, engine, 0)
    sent = engine.cohort(IDS, keys.key(5)).run(
        method.local_update, theta={n: t[state.assign] for n, t in state.centers.items()}
    )["theta"]
    names = task.params if layers == "all" else ("2.weight", "2.bias")
    flat = [np.concatenate([t[n].flatten(1).double().numpy() for n in names], 1) for t in (sent, state.centers)]
    s = ((flat[0][:, None] - flat[1][None]) ** 2).sum(-1).argmin(1)
    after = method.round(state, engine.cohort(IDS, keys.key(5)))
    assert after.assign.tolist() == s.tolist()
    for n, t in sent.items():
        for k in range(3):
            mean = t[torch.as_tensor(s == k)].mean(0) if (s == k).any() else state.centers[n][k]
            torch.testing.assert_close(after.centers[n][k], mean)


def test_the_proximal_term_holds_models_near_their_centre() -> None:
    task, population = small_task(), small_population()
    theta = task.init(keys.key(1))

    def travelled(strength: float) -> float:
        method = FeSEM(k=2, local=SGD(lr=0.1, batch=10, epochs=5), proximal=strength)
        got = Serial(task, population).cohort(IDS, keys.key(2)).run(method.local_update, {"theta": theta})["theta"]
        return float(sum((got[n] - theta[n]).square().sum() for n in task.params))

    assert travelled(3.0) < 0.5 * travelled(0.1) < 0.5 * travelled(0.0)


@pytest.mark.parametrize(
    ("field", "value"), [("k", 0), ("proximal", -0.1), ("distance_layers", "first"), ("weights", "n")]
)
def test_wrong_parameters_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r} should be"):
        FeSEM(**{field: value})


# -- the traps -------------------------------------------------------------------------------------------


def test_independent_starts_freeze() -> None:
    """A client starts at its own centre, far from the others: whatever it learns, no id ever changes."""
    task, population = digits()
    run, outcome = simulate(FeSEM(start="independent", local=SGD(steps=20)), task, population, 8)
    assert all(r.moved == 0 for r in run.records)
    assert all(r.logged["moved"] == 0 for r in run.records[1:])
    assert outcome.clusters is not None and outcome.clusters.ari < 0.3
    assert outcome.clusters_found == 4


def test_identical_centres_collapse_into_the_first() -> None:
    """Every distance is a tie, and a tie goes to the lowest index."""
    task, population = digits()
    start = Clusters(repeat(first_net(task, keys.key(3)), 4), torch.arange(24) % 4)
    cohort = Stacked(task, population).cohort(torch.arange(24), keys.key(4))
    after = FeSEM().round(start, cohort)
    assert cohort.logged["ties"] == 24 and cohort.logged["clusters_alive"] == 1
    assert after.assign.eq(0).all()
    assert all(torch.equal(after.centers[n][1:], t[1:]) for n, t in start.centers.items())


def test_an_empty_cluster_keeps_its_model() -> None:
    task, population, method = small_task(), small_population(), FeSEM(k=2, local=LOCAL)
    engine = Serial(task, population)
    state = play(method, engine, 0)
    gone = frozenset(i for i in IDS.tolist() if int(state.assign[i]) == 1)
    after = play(method, Flaky(engine, 0.0, gone), 1, state=state)
    assert_equal(row(after.centers, 1), row(state.centers, 1), "the centre nobody reached")
    assert after.assign.tolist() == state.assign.tolist()


# -- recovery --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["rotate", "swap_labels"])
@pytest.mark.parametrize("matched", [False, True])
def test_recovers_planted_clusters(shift: str, matched: bool) -> None:
    task, population = digits(1, shift, unseen=8)
    _, outcome = simulate(FeSEM(local=SGD(epochs=2), matched=matched), task, population, 6)
    assert outcome.clusters is not None and outcome.clusters.ari == 1.0
    assert outcome.accuracy.mean > 0.85
    assert outcome.unseen_assign is not None and population.truth is not None
    assert clustering(outcome.unseen_assign, population.truth[24:]).ari == 1.0


# -- matched ---------------------------------------------------------------------------------------------


def test_aligned_networks_need_no_matching() -> None:
    """Clients that start from their centre keep its order of neurons: FeSEM-MA is FeSEM, bit for bit."""
    task, population = digits(2)
    plain, matched = (
        simulate(FeSEM(matched=m, local=SGD(lr=0.05)), task, population, 3)[0].state for m in (False, True)
    )
    assert_equal(plain, matched, "FeSEM and FeSEM-MA")


def test_shuffled_networks_are_matched_before_the_mean() -> None:
    task, population = digits()
    centers, layers = task.init_stack(keys.key(4), 2), chain(task)
    truth = torch.tensor([0, 1, 1, 0])

    def shuffled(i: int, k: int) -> Tree:
        theta = {n: t + 0.001 * keys.normal(keys.fold_in(keys.key(i), n), *t.shape) for n, t in row(centers, k).items()}
        return permuted(layers, theta, [keys.permutation(keys.key(i + 10), layers[0].neurons)])

    theta = stack([shuffled(i, k) for i, k in enumerate(truth.tolist())])
    cohort = Serial(task, population).cohort(torch.arange(4), keys.key(5))
    ordered, s = FeSEM(k=2, matched=True).e_step(cohort, theta, centers)
    assert s.tolist() == truth.tolist()
    x = population.train.x[:20]
    for i, k in enumerate(truth.tolist()):
        assert max(float((ordered[n][i] - centers[n][k]).abs().max()) for n in task.params) < 0.01
        torch.testing.assert_close(task.logits(row(ordered, i), x), task.logits(row(theta, i), x), atol=1e-4, rtol=0)


def test_models_that_cannot_be_matched_are_refused_before_training() -> None:
    population = small_population()
    task = Task(build_model("resnet18", (3, 8, 8), 3, width=0.1), 3)
    with pytest.raises(ValueError, match=r"with a Block at 'encoder.stage1.0' should be a plain sequence"):
        FeSEM(k=2, matched=True).init(task, Serial(task, population).cohort(IDS, keys.key(1)), keys.key(1))


def test_eq_7_holds_small_clients_nearer_to_their_centre() -> None:
    """With by_size the pull is lambda times the mean size over the client's own, as eq. 7 over alpha_i has it."""
    population = small_population()
    sizes = population.train.sizes[:CLIENTS].double()
    engine = Serial(small_task(), population)
    theta = repeat(engine.task.init(keys.key(1)), CLIENTS)

    def trained(method: FeSEM, **shared: torch.Tensor) -> torch.Tensor:
        got = engine.cohort(torch.arange(CLIENTS), keys.key(3)).run(method.local_update, shared, theta=theta)
        return flat(got["theta"], engine.task.params)

    by_size = trained(FeSEM(k=2, local=LOCAL, proximal=0.5), typical=sizes.mean().float())
    for i in range(CLIENTS):
        alone = trained(FeSEM(k=2, local=LOCAL, proximal=float(0.5 * sizes.mean() / sizes[i])))
        torch.testing.assert_close(by_size[i], alone[i], atol=1e-6, rtol=1e-5)
    down, up = FeSEM(k=2, local=LOCAL, by_size=True).cost(engine.task)
    assert (down, up) == (engine.task.size + 4, engine.task.size + 4)
    check_method(FeSEM(k=2, local=LOCAL, by_size=True))
