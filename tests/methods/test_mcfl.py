"""MCFL: what the mean image can tell apart, what it cannot, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.evaluate.served import evaluate, personal_models
from clusterfl.loop import Simulation
from clusterfl.methods import CFL, FLHC, IFCA, MCFL, FedAvg, FedDSMIC
from clusterfl.methods.mcfl import FEATURES, MCFLState, embedding
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.record import Outcome, Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import concat

LOCAL = SGD(lr=0.1, batch=10)
SMALL = IFCA(k=2, local=LOCAL)
FLIPPED = DataConfig(clients=10, unseen=4, clusters=2, shift="rotate", angles=(0.0, 180.0), test_samples=200)


def digits(config: DataConfig) -> tuple[Task, Population]:
    return Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10), build(config, keys.key(5))


def simulate(method: MCFL, config: DataConfig, rounds: int = 20) -> tuple[Outcome, Population]:
    task, population = digits(config)
    schedule = Schedule(rounds, eval_every=rounds)
    return Simulation(method, population, Stacked(task, population), schedule).run(), population


def start(method: MCFL, population: Population) -> tuple[MCFLState, Serial]:
    engine = Serial(small_task(), population)
    ids = torch.arange(population.clients)
    return method.init(engine.task, engine.cohort(ids, keys.key(1)), keys.key(7)), engine


def test_training_is_the_bases() -> None:
    check_same(MCFL(SMALL), SMALL, rounds=3)


def test_features_are_mean_images_and_clusters_take_their_means() -> None:
    population = small_population()
    method = MCFL(SMALL, samples=1000)
    state, _ = start(method, population)
    images = np.stack([population.train.of(i)[0].double().numpy().mean(axis=0) for i in range(CLIENTS)])
    np.testing.assert_allclose(state.features.numpy(), images, atol=1e-5)
    assign, means = state.base.assign.numpy(), method.means(state).numpy()
    for k in range(2):
        np.testing.assert_allclose(means[k], images[assign == k].mean(axis=0), atol=1e-5)


def test_a_sample_is_a_sample() -> None:
    """With few samples the mean is that of some of the client's own inputs."""
    population = small_population()
    state, _ = start(MCFL(SMALL, samples=1), population)
    for i in range(CLIENTS):
        x = population.train.of(i)[0]
        assert ((x - state.features[i]).abs().amax(dim=1) < 1e-6).any()


def test_noise_is_added_on_the_client() -> None:
    population = small_population()
    plain, noisy = (start(MCFL(SMALL, noise=n), population)[0].features for n in (0.0, 0.5))
    assert 0.3 < float((noisy - plain).std()) < 0.7


def test_features_go_up_once_and_models_down_as_asked() -> None:
    population, size = small_population(), small_task().size
    traffic = {}
    for download in ("each-round", "end"):
        engine = Serial(small_task(), population)
        play(MCFL(SMALL, download=download), engine, 3)
        traffic[download] = engine.traffic
        assert engine.traffic.up["MCFL.describe"] == CLIENTS * 6 * 4, "six floats from every client, once"
    assert traffic["each-round"].down["MCFL.receive"] == 3 * CLIENTS * 2 * size
    assert "MCFL.receive" not in traffic["end"].down


def test_who_was_silent_at_the_start_is_asked_again() -> None:
    population = small_population()
    state = play(MCFL(SMALL), Flaky(Serial(small_task(), population), 0.4), 8)
    assert state.known.all()


@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_a_client_without_samples_has_no_mean_image(engine: type[Serial]) -> None:
    parts = [(keys.normal(keys.key(i), n, 6), torch.zeros(n, dtype=torch.int64)) for i, n in enumerate((5, 0, 6, 4))]
    shards = Shards.from_parts(parts)
    task = small_task()
    made = engine(task, Population(shards, shards, 4, 3))
    state = MCFL(CFL(local=LOCAL)).init(task, made.cohort(torch.arange(4), keys.key(1)), keys.key(7))
    assert state.known.tolist() == [True, False, True, True]
    assert state.features.isfinite().all()


def test_a_cluster_nobody_spoke_for_is_never_chosen() -> None:
    method = MCFL(SMALL)
    state, engine = start(method, small_population())
    state = replace(state, known=state.base.assign == 1)
    assert method.means(state)[0].isinf().all()
    admitted = method.admit(state, engine.cohort(torch.arange(12, 14), keys.key(3)))
    assert admitted.index.tolist() == [1, 1]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("feature", ["pixels", "embedding"])
def test_flipped_images_are_told_apart(feature: str, norm: str) -> None:
    """Table 2's shape: inter accuracy of the base is poor, and of MCFL as good as intra accuracy."""
    found, population = simulate(MCFL(FLHC(k=2, start_round=5), feature=feature, norm=norm), FLIPPED, 15)
    assert found.clusters is not None and found.clusters.ari == 1.0
    assert found.inter == pytest.approx(found.intra) and found.intra > 0.85
    bare = FLHC(k=2, start_round=5)
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    alone = Simulation(bare, population, Serial(task, population), Schedule(15, eval_every=15)).run()
    assert alone.inter is not None and alone.inter < found.inter - 0.2
    assert found.unseen_assign is not None
    assert clustering(torch.cat([found.served.index, found.unseen_assign]), population.truth).ari == 1.0


def test_a_scalar_mean_is_blind_to_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's 'feature mean' cannot be one number: turned by 180 degrees, an image has the same."""
    monkeypatch.setitem(FEATURES, "scalar", lambda x: x.flatten(1).mean(dim=1, keepdim=True))
    _, population = digits(FLIPPED)
    x = population.train.of(0)[0]
    torch.testing.assert_close(FEATURES["scalar"](x), FEATURES["scalar"](x.rot90(2, (2, 3))))
    assert (x.mean(dim=0) - x.rot90(2, (2, 3)).mean(dim=0)).norm() > 0.5
    base = FLHC(k=2, start_round=5)
    blind, _ = simulate(MCFL(base, feature="scalar"), FLIPPED, 15)
    seeing, _ = simulate(MCFL(base), FLIPPED, 15)
    assert blind.accuracy.mean < seeing.accuracy.mean - 0.1


def test_swapped_labels_cannot_be_seen() -> None:
    """The clusters' inputs are alike, so the mean image says nothing about which labels are right."""
    config = DataConfig(clients=10, clusters=2, shift="permute_labels", test_samples=200)
    base = FLHC(k=2, start_round=5)
    found, _ = simulate(MCFL(base), config, 15)
    assert found.clusters is not None and found.clusters.ari == 1.0, "the base finds them"
    assert found.accuracy.mean < found.global_accuracy - 0.1, "and serves them better than the client's own choice"


def test_labels_of_test_samples_are_not_looked_at() -> None:
    population = small_population()
    method = MCFL(SMALL)
    state = play(method, Serial(small_task(), population), 2)
    served = method.serve(state, torch.arange(CLIENTS))
    chosen = []
    for shift in (0, 1):
        test = population.test
        other = Population(population.train, Shards(test.x, (test.y + shift) % 3, test.rows, test.offsets), CLIENTS, 3)
        engine = Serial(small_task(), other)
        parts = personal_models(engine, method, served, torch.arange(CLIENTS), keys.key(4))
        chosen.append(concat([models for _, models in parts]))
    for n, t in chosen[0].items():
        assert torch.equal(t, chosen[1][n])


def test_the_embedding_is_the_same_everywhere_and_sees_more_than_means() -> None:
    x = keys.normal(keys.key(1), 200, 1, 4, 4)
    assert torch.equal(embedding(x), embedding(x))
    assert embedding(x).shape == (200, 256)
    wide, narrow = x - x.mean(dim=0), 0.1 * (x - x.mean(dim=0))

    def apart(f: Tensor, g: Tensor) -> float:
        return float((f.mean(dim=0) - g.mean(dim=0)).norm())

    assert apart(wide, narrow) < 1e-4 < apart(embedding(wide), embedding(narrow))


def test_wrong_settings_say_so() -> None:
    for options in ({"samples": 0}, {"noise": -1.0}, {"feature": "smell"}, {"base": FedAvg()}):
        with pytest.raises(ValueError, match=next(iter(options))):
            MCFL(**options)
    assert MCFL().base == CFL()


def test_abroad_a_personalising_base_makes_its_own_of_the_model_that_is_chosen_there() -> None:
    """Inter accuracy is what a client really uses on another cluster's data, and there is none with one cluster."""
    base = FedDSMIC(k=2, local=LOCAL, warmup=0, inner_lr=0.5, personal_steps=5)
    population, ids = small_population(), torch.arange(CLIENTS)
    run = Simulation(MCFL(base), population, Serial(small_task(), population), Schedule(3, eval_inter=True))
    found = run.run()
    index, served = found.served.index, found.served
    key, accuracies = keys.fold_in(keys.key(0), "cross"), []
    for g in range(2):
        hosts, guests = ids[index == g], ids[index != g]
        answers = []
        for i in guests.tolist():
            one = replace(served, index=served.index[[i]])
            for v, host in enumerate(hosts.tolist()):  # of few hosts everyone is visited by every guest
                test = Shards.from_parts([population.test.of(host)] * len(population.test))
                there = Serial(small_task(), replace(population, test=test))
                parts = evaluate(there, found.method, one, ids[[i]], keys.fold_in(key, "abroad", g, v), 3)
                answers.append(float(parts.accuracy[0]))
        accuracies.append(sum(answers) / len(answers))
    assert found.inter == pytest.approx(sum(accuracies) / 2, abs=1e-6)
    assert found.inter != pytest.approx(found.intra, abs=1e-3)
    last = found.records[-1]
    assert (last.intra, last.inter) == (found.intra, found.inter)
    assert [r.inter is None for r in found.records] == [False] * 4
    one_cluster = MCFL(replace(base, k=1))
    alone = Simulation(one_cluster, population, Serial(small_task(), population), Schedule(1, eval_inter=True)).run()
    assert alone.inter is None and alone.records[-1].inter is None and alone.records[-1].intra is not None
