"""FLUX: descriptors and their clustering, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FLUX, FedAvg
from clusterfl.methods.flux import POINTS, TOP, by_density, knee, projection, rescaled
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

from .small import LOCAL

QUICK = {"least_rounds": 2, "flat": 1.0, "local": LOCAL}  # grouped after two rounds


def test_knee_by_hand() -> None:
    """Below the line from (0, 0) to (1, 1) by .25 - .1, .5 - .2 and .75 - .3."""
    assert knee(torch.tensor([0.0, 0.1, 0.2, 0.3, 1.0])) == pytest.approx(0.3)
    assert knee(torch.tensor([1.0, 1.1, 1.2, 5.0, 9.0])) == pytest.approx(1.2)
    assert knee(torch.tensor([1.0, 2.0, 3.0])) == 3.0  # straight: no knee
    assert knee(torch.tensor([2.0, 2.0, 2.0])) == 2.0


def test_two_neighbours_make_a_group_and_a_lone_point_one_of_its_own() -> None:
    points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.15], [9.0], [-7.0]])
    assert by_density(points, 1.0).tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    assert by_density(points, 100.0).tolist() == [0] * 8
    assert by_density(points[:1], 1.0).tolist() == [0]
    assert by_density(torch.zeros(3, 2), 1.0).tolist() == [0, 0, 0]


def test_the_projection_is_a_pca_of_shared_points() -> None:
    points = TOP * keys.uniform(keys.fold_in(keys.key(0), "flux", "points"), POINTS, 8).double().numpy()
    pca = PCA(3).fit(points)
    center, axes = projection(8, 3)
    z = keys.normal(keys.key(1), 5, 8)
    np.testing.assert_allclose(np.abs((z - center) @ axes), np.abs(pca.transform(z.double().numpy())), atol=1e-5)


def test_a_descriptor_by_hand() -> None:
    """Mean and standard deviation of all samples, then of those of each class; -1 for a class with one sample."""
    task, population = small_task(), small_population()
    x, y = population.train.of(0)
    rare = torch.where((torch.arange(len(y)) > 2) & (y == 1), 0, y)  # class 1 keeps its first sample alone
    assert int((rare == 1).sum()) == 1
    shard = Shard(x, rare, torch.arange(len(y)), len(y))
    me = Client(task, shard, shard, keys.key(0), smallest=len(y))
    method, theta = FLUX(dim=3), task.init(keys.key(2))
    got = method.describe(me, theta)["moments"]
    center, axes = projection(8, 3)
    z = ((task.features(theta, x) - center) @ axes).double().numpy()
    blocks = [z.mean(0), z.std(0)]
    members = [z[rare.numpy() == c] for c in range(3)]
    blocks += [np.full(3, -1.0) if len(m) < 2 else m.mean(0) for m in members]
    blocks += [np.full(3, -1.0) if len(m) < 2 else m.std(0) for m in members]
    np.testing.assert_allclose(got, np.stack(blocks), atol=1e-5)
    np.testing.assert_allclose(method.describe_inputs(me, theta)["moments"], np.stack(blocks[:2]), atol=1e-5)


def test_groups_are_those_of_the_authors_pipeline() -> None:
    """One MinMaxScaler a block, then DBSCAN(eps, min_samples=2), noise as groups of one (flux/centralized_fl.py)."""
    found = keys.normal(keys.key(3), 10, 4, 3)
    found[5:] += 4.0
    found[9] -= 9.0
    scale = torch.stack([found.amin(dim=(0, 2)), found.amax(dim=(0, 2))]).unsqueeze(2)
    ours = rescaled(found, scale).flatten(1)
    theirs = np.concatenate(
        [MinMaxScaler().fit_transform(b.reshape(-1, 1)).reshape(10, 3) for b in found.numpy().swapaxes(0, 1)], axis=1
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    nearest = np.sort(np.sort(np.linalg.norm(theirs[:, None] - theirs[None], axis=2), axis=1)[:, 1])
    labels = DBSCAN(eps=knee(torch.from_numpy(nearest)) * 1.0001, min_samples=2).fit_predict(theirs)
    extra = labels.max()
    for i in range(10):
        if labels[i] == -1:
            extra += 1
            labels[i] = extra
    assert by_density(ours, 1.0).tolist() == labels.tolist()


def test_it_is_fedavg_until_the_accuracy_flattens() -> None:
    check_same(FLUX(LOCAL, flat=0.0, least_rounds=3), FedAvg(LOCAL), rounds=2)
    engine = Serial(small_task(), small_population())
    state = play(FLUX(LOCAL, least_rounds=50), engine, 3)
    assert not state.grouped and len(state.trend) == 3 and state.k == 1
    assert bool((state.trend.diff() > 0).all())  # accuracies of the model that clients got
    assert play(FLUX(**QUICK), Serial(small_task(), small_population()), 2).grouped


def test_planted_groups_are_found_without_k() -> None:
    """Turned digits at seeds 0 and 1: no group holds clients of two, though some clients stand alone."""
    for seed in (0, 1):
        population = build(DataConfig(clients=24, clusters=4, shift="rotate", samples=60), keys.key(seed))
        task = Task(build_model("mlp", (1, 8, 8), 10, widths=[64]), 10)
        method = FLUX(SGD(lr=0.1, batch=20, epochs=2))
        found = Simulation(method, population, Stacked(task, population), Schedule(6, eval_every=6)).run()
        assert found.clusters is not None and found.clusters.ari > 0.65 and population.truth is not None
        for j in found.served.index.unique():
            assert len(population.truth[found.served.index == j].unique()) == 1


def test_late_clients_and_newcomers_are_placed() -> None:
    population = build(DataConfig(clients=16, unseen=4, clusters=2, shift="rotate", samples=80), keys.key(1))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    engine = Flaky(Serial(task, population), 0.3)
    state = play(FLUX(**QUICK), engine, 2)
    assert state.grouped and not state.known.all()
    state = play(FLUX(**QUICK), Serial(task, population), 1, state=state)
    assert state.known.all()
    newcomers = Serial(task, population).cohort(torch.arange(16, 20), keys.key(2), 3)
    joined = FLUX(**QUICK).admit(state, newcomers).index
    truth = population.truth
    assert truth is not None
    big = state.assign < 2  # groups of one aside
    assert clustering(state.assign[big], truth[:16][big]).ari == 1.0 and int(big.sum()) >= 12
    home = [int(truth[:16][state.assign == j][0]) for j in joined]  # without labels not all are told apart
    assert sum(a == b for a, b in zip(home, truth[16:].tolist(), strict=True)) >= 3


def test_settings_are_checked() -> None:
    for options in ({"flat": -1.0}, {"least_rounds": 0}, {"dim": 0}, {"reach": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FLUX(**options)  # type: ignore[arg-type]
