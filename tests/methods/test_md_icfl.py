"""MD-ICFL: its distance and samplers against plain computations, its privacy, its traps, its recovery of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clusterfl import codec, keys
from clusterfl.client import Call, Chunk, Client, Shard
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines import Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.flaky import Wrapper
from clusterfl.errors import NoReplies
from clusterfl.loop import Outcome, Schedule, Simulation
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.md_icfl import MDICFL, MDState
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.adam import adam, gradient_of
from clusterfl.parts.distance import class_distance, label_ratios, outputs
from clusterfl.parts.local import SGD, Train
from clusterfl.parts.pseudo import BackSearch, GeneratorSearch, Prior, search
from clusterfl.task import Task
from clusterfl.testing import CLASSES, CLIENTS, assert_equal, check_method, play, small_population, small_task
from clusterfl.tree import Tree, row, take

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
QUICK = MDICFL(k=2, local=LOCAL, samples=2, iterations=5, warmup=0)
KEY = keys.key(5)


def alone(task: Task, shape: tuple[int, ...], key: Tensor = KEY) -> Client:
    """The "me" of server work."""
    none = Shard(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0)
    return Client(task, none, none, key)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def by_hand(theta: Tree, x: np.ndarray) -> np.ndarray:
    """The small task's net, in numpy."""
    w = {n: t.double().numpy() for n, t in theta.items()}
    hidden = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0.0)
    return softmax(hidden @ w["2.weight"].T + w["2.bias"])


# -- parts -------------------------------------------------------------------------------------------


def test_class_distance_is_equation_5_by_hand() -> None:
    task = small_task()
    centers, mine = task.init_stack(KEY, 2), task.init(keys.fold_in(KEY, "mine"))
    x = keys.normal(KEY, 2, CLASSES, 4, 6)
    h = torch.stack([outputs(task, row(centers, j), x[j], 2) for j in range(2)])
    found = class_distance(task, mine, x, h)
    for j in range(2):
        for k in range(CLASSES):
            gaps = [np.abs(by_hand(mine, v) - by_hand(row(centers, j), v)).sum() for v in x[j, k].double().numpy()]
            assert abs(float(found[j, k]) - np.mean(gaps)) < 1e-5
    own = class_distance(task, row(centers, 1), x, h)
    assert torch.equal(own[1], torch.zeros(CLASSES)) and bool((own[0] > 0).all())


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_class_distance_is_twice_a_total_variation(seed: int, scale: float) -> None:
    task, key = small_task(), keys.key(seed)
    theta = {n: scale * t for n, t in task.init(key).items()}
    x = keys.normal(keys.fold_in(key, "x"), 2, CLASSES, 3, 6)
    h = torch.softmax(scale * keys.normal(keys.fold_in(key, "h"), 2, CLASSES, 3, CLASSES), dim=-1)
    d = class_distance(task, theta, x, h)
    assert d.shape == (2, CLASSES) and bool((d >= 0).all()) and bool((d <= 2 + 1e-5).all())


def test_outputs_in_pieces() -> None:
    task = small_task()
    theta, x = task.init(KEY), keys.normal(KEY, 3, 401, 6)
    found = outputs(task, theta, x, 2)
    torch.testing.assert_close(found[1, 7], task.probabilities(theta, x[1, 7:8])[0])
    assert found.shape == (3, 401, CLASSES)


def test_label_ratios_ignore_padding() -> None:
    population = small_population()
    for engine in (Serial(small_task(), population), Stacked(small_task(), population)):
        got = engine.cohort(torch.arange(CLIENTS), KEY).run(QUICK.ratios)["p"]
        for i in range(CLIENTS):
            y = population.train.of(i)[1].numpy()
            np.testing.assert_allclose(got[i].numpy(), np.bincount(y, minlength=CLASSES) / len(y), atol=1e-6)


def test_label_ratios_of_a_client_without_data() -> None:
    assert torch.equal(label_ratios(alone(small_task(), (6,))), torch.zeros(CLASSES))


def test_adam_is_torch_adam() -> None:
    target = keys.normal(KEY, 7)

    def value(tree: Tree) -> Tensor:
        return (tree["a"] - target).square().sum() + tree["b"].abs().pow(1.5).sum()

    start = {"a": torch.zeros(7), "b": keys.normal(keys.fold_in(KEY, 1), 2, 2)}
    leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
    theirs = torch.optim.Adam(leaves.values(), lr=0.05)
    for _ in range(30):
        theirs.zero_grad()
        value(leaves).backward()
        theirs.step()
    mine = adam(lambda tree, _: gradient_of(value, tree, stacked=False), start, 30, 0.05)
    functional = adam(lambda tree, _: gradient_of(value, tree, stacked=True), start, 30, 0.05)
    for name, leaf in leaves.items():
        torch.testing.assert_close(mine[name], leaf.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(functional[name], mine[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prior", [Prior(), Prior(0.3, 0.5), Prior(0.01, -1.0, squared=True)])
def test_back_search_is_equation_6(prior: Prior) -> None:
    task = small_task()
    theta, me = task.init(KEY), alone(task, (6,))
    sampler = BackSearch(4, prior)
    start = sampler.start(me)
    assert start["x"].shape == (CLASSES, 4, 6)
    found = search(me, theta, sampler, start, 25)["x"]
    x = start["x"].clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.1)
    for _ in range(25):
        optimiser.zero_grad()
        total = torch.zeros(())
        for k in range(CLASSES):
            for n in range(4):
                distance = torch.linalg.vector_norm(x[k, n] - prior.mean)
                distance = distance.square() if prior.squared else distance
                total = total - torch.log_softmax(task.logits(theta, x[k, n : n + 1]), 1)[0, k]
                total = total + prior.penalty / 2 * distance
        total.backward()
        optimiser.step()
    torch.testing.assert_close(found, x.detach(), rtol=1e-3, atol=1e-4)


def test_the_prior_has_a_gradient_at_its_mean() -> None:
    task = small_task()
    theta, y = task.init(KEY), torch.zeros(2, dtype=torch.int64)
    at = {"x": torch.zeros(2, 6)}
    for stacked in (False, True):
        g = gradient_of(lambda tree: Prior().energy(task, theta, tree["x"], y).sum(), at, stacked=stacked)
        assert bool(torch.isfinite(g["x"]).all())


def sharp_task() -> tuple[Task, Tree]:
    """A net that is sure of its answers, as a trained one is."""
    task = small_task()
    return task, {n: 3.0 * t for n, t in task.init(KEY).items()}


def test_both_samplers_find_samples_of_every_class() -> None:
    task, theta = sharp_task()
    me = alone(task, (6,))
    for sampler, its in ((BackSearch(10, Prior()), 100), (GeneratorSearch(10, Prior(), batch=30, hidden=32), 150)):
        found = search(me, theta, sampler, sampler.start(me), its)
        x = sampler.draw(me, found)
        assert x.shape == (CLASSES, 10, 6)
        h = outputs(task, theta, x, 2)
        right = h.argmax(-1) == torch.arange(CLASSES).unsqueeze(1)
        assert float(right.float().mean()) > 0.9


def test_a_larger_penalty_keeps_samples_nearer_to_the_mean() -> None:
    task, theta = sharp_task()
    me = alone(task, (6,))
    far = []
    for penalty in (0.01, 0.1, 1.0):
        sampler = BackSearch(10, Prior(penalty, 0.5))
        x = search(me, theta, sampler, sampler.start(me), 100)["x"]
        far.append(float((x - 0.5).flatten(2).norm(dim=2).mean()))
    assert far[0] > far[1] > far[2]


# -- the round ---------------------------------------------------------------------------------------


def test_a_round_is_algorithm_1_by_hand() -> None:
    population, task = small_population(), small_task()
    engine = Serial(task, population)
    state = play(QUICK, engine, rounds=0)
    ids = torch.tensor([0, 3, 4, 7, 9])
    after = QUICK.round(state, engine.cohort(ids, KEY))

    cohort = engine.cohort(ids, KEY)  # the same key: the same draws
    theta = cohort.run(QUICK.train, theta=take(state.centers, state.assign[ids]))["theta"]
    x = QUICK.pseudo(state, cohort).x.double().numpy()
    s = []
    for m, i in enumerate(ids.tolist()):
        y = population.train.of(i)[1].numpy()
        d = np.zeros(2)
        for j in range(2):
            for k in range(CLASSES):
                gap = np.abs(by_hand(row(theta, m), x[j, k]) - by_hand(row(state.centers, j), x[j, k]))
                d[j] += np.mean(y == k) * gap.sum(axis=1).mean()
        s.append(int(d.argmin()))
    assert after.assign[ids].tolist() == s
    others = [i for i in range(CLIENTS) if i not in ids.tolist()]
    assert torch.equal(after.assign[others], state.assign[others])
    for name, t in after.centers.items():
        for j in range(2):
            members = [m for m in range(len(ids)) if s[m] == j]
            mean = theta[name][members].mean(dim=0) if members else state.centers[name][j]
            torch.testing.assert_close(t[j], mean, rtol=1e-5, atol=1e-6)


VARIANTS: dict[str, dict[str, Any]] = {
    "strong": {"privacy": "strong"},
    "generator": {"sampler": "generator", "generator_hidden": 8, "generator_batch": 6},
    "warm": {"warm": True, "warm_iterations": 2},
    "warm generator": {"sampler": "generator", "generator_hidden": 8, "warm": True, "warm_iterations": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_conform(variant: str) -> None:
    # a generator's weights are in a warm state, and Adam enlarges the rounding of small gradients
    check_method(replace(QUICK, **VARIANTS[variant]), tolerance=1e-4 if variant == "warm generator" else 1e-5)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_one_cluster_is_fedavg(privacy: Any) -> None:
    one = replace(QUICK, k=1, init_from="independent", privacy=privacy)
    check_method(one, counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_one_cluster_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MDICFL, "pseudo", lambda *_: pytest.fail("searched"))
    one, engine = replace(QUICK, k=1), Serial(small_task(), small_population())
    served = one.admit(play(one, engine, rounds=2), engine.cohort(torch.arange(3), KEY))
    assert served.index.tolist() == [0, 0, 0]


@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_models_with_batch_norm(engine: type[Serial]) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    population = small_population(ragged=False)
    before = play(QUICK, engine(Task(net, CLASSES), population), rounds=1)
    assert all(bool(torch.isfinite(t).all()) for t in before.centers.values())
    # sampling and distances run in evaluation mode: one sample's answer does not depend on the others
    task = Task(net, CLASSES)
    x = keys.normal(KEY, 5, 6)
    theta = row(before.centers, 0)
    torch.testing.assert_close(outputs(task, theta, x, 1)[:2], outputs(task, theta, x[:2], 1))


# -- privacy and traffic -----------------------------------------------------------------------------


class Tapped(Wire):
    """Keeps every message that crosses."""

    def __init__(self, task: Task, population: Population) -> None:
        super().__init__(task, population)
        self.up: list[tuple[str, dict[str, Any], bytes]] = []

    def _far_side(self, message: bytes) -> bytes:
        reply = super()._far_side(message)
        request = codec.unpack(message)
        if not request.server:
            self.up.append((request.name, codec.unpack(reply).fields, reply))
        return reply


def skewed_population() -> Population:
    """Each client has its own label ratios, none of them round numbers."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(6):
        y = rng.permutation(np.repeat(np.arange(CLASSES), [5 + i, 9 - i, 3 + 2 * i]))
        parts.append((rng.normal(size=(len(y), 6)) + 2.0 * y[:, None], y))
    return Population.from_arrays(parts, parts, classes=CLASSES)


def test_strong_privacy_sends_models_and_cluster_ids_alone() -> None:
    population, task = skewed_population(), small_task()
    engine = Tapped(task, population)
    strong = replace(QUICK, privacy="strong")
    state = play(strong, engine, rounds=3)
    assert state.p is None
    assert {name for name, _, _ in engine.up} == {"train", "choose"}
    fields = {n for name, reply, _ in engine.up if name == "choose" for n in reply}
    assert fields == {"s"}
    ratios = [torch.bincount(population.train.of(i)[1], minlength=CLASSES).float() for i in range(6)]
    for name, reply, raw in engine.up:
        if name == "choose":
            assert reply["s"].shape == () and reply["s"].dtype == torch.int64
        for counts in ratios:
            for secret in (counts, counts.long(), counts / counts.sum()):
                assert secret.numpy().tobytes() not in raw

    weak = Tapped(task, population)
    assert_equal(state.centers, play(QUICK, weak, rounds=3).centers, "weak and strong")
    assert any((c / c.sum()).numpy().tobytes() in raw for c in ratios for _, _, raw in weak.up)


def test_clients_stay_where_they_started_in_the_warm_up() -> None:
    waiting = replace(QUICK, warmup=2)
    engine = Serial(small_task(), small_population())
    start = play(waiting, engine, rounds=0)
    state = play(waiting, engine, rounds=2)
    assert torch.equal(state.assign, start.assign) and "MDICFL.ratios" not in engine.traffic.up
    trained = play(replace(QUICK, warmup=9), Serial(small_task(), small_population()), rounds=2)
    assert_equal(state.centers, trained.centers, "the warm-up's length does not matter while it lasts")
    assert not torch.equal(trained.centers["0.weight"], start.centers["0.weight"])
    play(waiting, engine, rounds=3)
    assert "MDICFL.ratios" in engine.traffic.up


def test_label_ratios_are_sent_once() -> None:
    population = skewed_population()
    engine = Serial(small_task(), population)
    state = play(QUICK, engine, rounds=1, some=0.5)
    seen = (state.p.sum(dim=1) > 0).sum()
    assert seen == 3 and engine.traffic.up["MDICFL.ratios"] == 3 * CLASSES * 4
    state = play(QUICK, engine, rounds=3, state=state)
    assert engine.traffic.up["MDICFL.ratios"] == 6 * CLASSES * 4
    for i in range(6):
        counts = torch.bincount(population.train.of(i)[1], minlength=CLASSES).float()
        torch.testing.assert_close(state.p[i], counts / counts.sum())


class Deaf(Wrapper):
    """Clients that never answer one procedure."""

    def __init__(self, inner: BaseEngine, name: str, ids: set[int]) -> None:
        super().__init__(inner)
        self.name, self.deaf = name, ids

    def execute(self, call: Call) -> Iterator[Chunk]:
        stay = torch.tensor(
            [p for p, i in enumerate(call.ids.tolist()) if call.name != self.name or i not in self.deaf]
        )
        if len(stay):
            for chunk in self.inner.execute(call.only(stay)):
                yield Chunk(stay[chunk.positions], chunk.fields)


def test_a_client_whose_ratios_are_unknown_waits() -> None:
    population, task = skewed_population(), small_task()
    engine = Deaf(Serial(task, population), "ratios", {0, 1})
    start = play(QUICK, engine, rounds=0)
    state = QUICK.round(start, engine.cohort(torch.arange(6), KEY))
    assert state.p is not None and (state.p.sum(dim=1) > 0).tolist() == [False, False, True, True, True, True]
    assert torch.equal(state.assign[:2], start.assign[:2])
    cohort = engine.cohort(torch.arange(2, 6), KEY)
    theta = cohort.run(QUICK.train, theta=take(start.centers, start.assign[2:]))["theta"]
    for j in state.assign[2:].unique().tolist():  # the two have no part in the means
        for name, t in theta.items():
            torch.testing.assert_close(state.centers[name][j], t[state.assign[2:] == j].mean(dim=0))
    engine.deaf = set()
    state = QUICK.round(state, engine.cohort(torch.arange(6), KEY))
    assert state.p is not None and bool((state.p.sum(dim=1) > 0).all())
    engine.deaf = set(range(6))
    with pytest.raises(NoReplies, match=r"MDICFL\.ratios"):
        QUICK.round(start, engine.cohort(torch.arange(6), KEY))


@pytest.mark.parametrize("privacy", ["weak", "strong"])
@pytest.mark.parametrize("k", [2, 4])
def test_downloads_a_kth_of_ifca(privacy: Any, k: int) -> None:
    population, task = small_population(), small_task()
    down = {}
    for method in (replace(QUICK, k=k, privacy=privacy), IFCA(k=k, local=LOCAL)):
        engine = Serial(task, population)
        state = play(method, engine, rounds=0)
        before = engine.traffic.total_down
        play(method, engine, rounds=1, state=state)
        down[method.name] = engine.traffic.total_down - before
    floats = CLIENTS * k * CLASSES * 4 if privacy == "strong" else 0
    assert down["md-icfl"] - floats == down["ifca"] / k


# -- clusters ----------------------------------------------------------------------------------------


def digits(shift: str = "rotate", **more: Any) -> Population:
    return build(DataConfig(source="digits", shift=shift, clients=16, clusters=4, samples=150, **more), keys.key(0))


def learn(method: MDICFL, population: Population, rounds: int = 4) -> tuple[Outcome, Simulation]:
    task = Task(build_model("mlp", population.input_shape, population.classes, widths=(32,)), population.classes)
    schedule = Schedule(rounds=rounds, eval_every=rounds)
    simulation = Simulation(method, population, Stacked(task, population), schedule)
    return simulation.run(), simulation


FAST = MDICFL(samples=10, iterations=40, warmup=0)  # a third of the paper's samples, and fewer steps


def ari(outcome: Outcome) -> float:
    assert outcome.clusters is not None
    return outcome.clusters.ari


def test_recovers_rotations_and_unseen_clients() -> None:
    population = digits(unseen=8)
    outcome, _ = learn(FAST, population)
    assert ari(outcome) == 1.0
    assert population.truth is not None and outcome.unseen_assign is not None
    assert clustering(outcome.unseen_assign, population.truth[population.clients :]).ari == 1.0
    # an unseen client gets the very cluster that its fellows have
    for i, s in enumerate(outcome.unseen_assign.tolist()):
        mates = population.truth[: population.clients] == population.truth[population.clients + i]
        assert outcome.served.index[mates].unique().tolist() == [s]


@pytest.mark.parametrize(
    "method",
    [
        replace(FAST, privacy="strong", warm=True, warm_iterations=10),
        replace(FAST, sampler="generator", iterations=100, warm=True, warm_iterations=20),
    ],
    ids=["strong, warm", "generator"],
)
def test_variants_recover_swapped_labels(method: MDICFL) -> None:
    outcome, _ = learn(method, digits("permute_labels"), rounds=3)
    assert ari(outcome) == 1.0


def test_the_papers_random_start_freezes() -> None:
    population = digits()
    outcome, simulation = learn(replace(FAST, init_from="independent"), population)
    first = simulation.records[0].assign
    assert all(torch.equal(r.assign, first) for r in simulation.records)
    assert [r.logged.get("moved", 0.0) for r in simulation.records] == [0.0] * 5
    assert ari(outcome) < 0.2


@pytest.mark.parametrize("k", [1, 5, 6])
def test_other_numbers_of_clusters(k: int) -> None:
    outcome, _ = learn(replace(FAST, k=k, samples=5, iterations=20), digits(), rounds=2)
    assert 1 <= outcome.clusters_found <= k
    assert ari(outcome) > 0.7 if k > 4 else ari(outcome) == 0.0


def test_an_empty_cluster_keeps_its_model() -> None:
    task, population = small_task(), small_population()
    engine = Serial(task, population)
    start = play(replace(QUICK, k=3), engine, rounds=0)
    # cluster 2 answers with certainty where the others do not, so that nobody is near it
    lost = {
        n: torch.cat([t[:2], 50.0 * keys.normal(keys.fold_in(KEY, n), 1, *t.shape[1:])])
        for n, t in start.centers.items()
    }
    state = MDState(lost, start.assign % 2, start.p)
    after = play(replace(QUICK, k=3), engine, rounds=2, state=state)
    assert 2 not in after.assign
    assert_equal(row(after.centers, 2), row(lost, 2), "the empty cluster")


def test_warm_goes_on_from_what_was_found() -> None:
    task, population = small_task(), small_population()
    warm = replace(QUICK, warm=True, warm_iterations=3)
    engine = Serial(task, population)
    first = play(warm, engine, rounds=1)
    assert_equal(first.centers, play(QUICK, engine, rounds=1).centers, "the first round starts from noise")
    cohort = engine.cohort(torch.arange(CLIENTS), KEY)
    x = warm.pseudo(first, cohort).x
    me = alone(task, (6,))
    assert first.found is not None
    for j in range(2):
        hand = search(me, row(first.centers, j), warm.searcher, row(first.found, j), 3)["x"]
        torch.testing.assert_close(x[j], hand)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"privacy": "none"}, "privacy='none' should be 'weak' or 'strong'"),
        ({"sampler": "gan"}, "sampler='gan' should be 'back-search' or 'generator'"),
        ({"samples": 0}, "samples=0 should be at least 1"),
        ({"k": 0}, "k=0 should be at least 1"),
        ({"iterations": 0}, "iterations=0 should be at least 1"),
        ({"rate": 0.0}, "rate=0.0 should be above 0"),
        ({"penalty": -1.0}, "penalty=-1.0 should be at least 0"),
        ({"sampler": "generator", "generator_batch": 1}, "generator_batch=1 should be at least 2"),
    ],
)
def test_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDICFL(**wrong)


def test_trains_as_plain_sgd() -> None:
    engine = Serial(small_task(), small_population())
    theta = engine.task.init(KEY)
    ids = torch.arange(3)
    mine = engine.cohort(ids, KEY).run(QUICK.train, {"theta": theta})["theta"]
    plain = engine.cohort(ids, KEY).run(Train(LOCAL).train, {"theta": theta})["theta"]
    assert_equal(mine, plain, "local training")
