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
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FLUX, FedAvg, flux
from clusterfl.methods.flux import POINTS, TOP, by_density, farthest, first_peak, projection, rescaled
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

from . import golden
from .small import LOCAL

QUICK = {"least_rounds": 2, "flat": 1.0, "local": LOCAL}  # grouped after two rounds


# `ModelEvaluator.extract_descriptors` of dariofenoglio98/FLUX, public/models.py, with 3 classes and 3 numbers, on
# clients 0 and 1 of golden.py whose features are their inputs; client 1 keeps one sample of class 0 and all of class 1
DESCRIBED = (
    [-0.464568, -1.686079, -0.385281, 0.994947, 2.034619, 0.880709, 0.389022, 0.132419, -1.209600, -0.138859, -0.788324,
     -0.577524, -1.643867, -4.402331, 0.631281, 0.588597, 0.480133, 0.409490, 0.549725, 0.825426, 0.500614, 0.309298,
     0.127447, 0.398485],
    [-0.181332, -2.631075, -0.120456, 0.675301, 1.876452, 1.453726, -1.0, -1.0, -1.0, 0.207300, -1.808305, -0.683742,
     -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 0.062485, 1.409597, 1.244424, -1.0, -1.0, -1.0],
)  # fmt: skip
# and, of flux/server.py, `client_descr_scaling.scale` of the six clients (client 1's), the nearest distances, that
# which kneed 0.9.0 calls their knee, and the groups of `SaveModelStrategy.aggregate_fit`
SCALED = [
    0.793523, 0.020661, 0.812729, 0.0, 0.883642, 0.572659, 0.538630, 0.538630, 0.538630, 1.0, 0.262652, 0.674039,
    0.565280, 0.565280, 0.565280, 0.0, 0.0, 0.0, 0.0, 1.0, 0.877388, 0.0, 0.0, 0.0,
]  # fmt: skip
NEAREST, KNEE = [1.032937, 1.032937, 1.053521, 1.053521, 1.256872, 1.952430], 1.053521
GROUPS = [0, 2, 3, 1, 0, 1]


def golden_clients() -> Population:
    """The six clients of golden.py; of client 1 one sample of class 0 and all of class 1."""
    pool = golden.population(golden.SIX).train
    parts = [pool.of(i) for i in range(6)]
    x, y = parts[1]
    keep = (y == 1) | (torch.arange(len(y)) == int((y == 0).nonzero()[0]))
    shards = Shards.from_parts([parts[0], (x[keep], y[keep]), *parts[2:]])
    return Population(shards, shards, 6, golden.CLASSES)


def test_groups_are_those_of_the_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the authors' random points, for ours come from keys."""
    pca = PCA(3).fit(np.random.RandomState(1).uniform(0, TOP, size=(POINTS, golden.WIDTH)))
    theirs = torch.from_numpy(pca.mean_).float(), torch.from_numpy(pca.components_.T.copy()).float()
    monkeypatch.setattr(flux, "projection", lambda width, dim: theirs)
    cohort = Serial(golden.task(), golden_clients()).cohort(torch.arange(6), keys.key(0))
    found = cohort.run(FLUX(dim=3).describe, {"theta": row(golden.models(1), 0)})["moments"]
    np.testing.assert_allclose(found[:2].flatten(1), DESCRIBED, atol=2e-6)
    scaled = rescaled(found, torch.stack([found.amin(dim=(0, 2)), found.amax(dim=(0, 2))]).unsqueeze(2)).flatten(1)
    np.testing.assert_allclose(scaled[1], SCALED, atol=2e-6)
    nearest = torch.cdist(scaled, scaled).fill_diagonal_(torch.inf).amin(dim=1).sort().values
    np.testing.assert_allclose(nearest, NEAREST, atol=1e-5)
    assert first_peak(nearest) == pytest.approx(KNEE, abs=1e-5)
    assert by_density(scaled, 1.0, "kneed").tolist() == GROUPS


def test_knees_are_those_of_kneed() -> None:
    """kneed 0.9.0, KneeLocator(curve="convex", direction="increasing"); without a knee it has None."""
    found = (
        ([0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 2.0, 2.1, 2.2, 3.0], 2.2),
        ([1.0, 1.05, 1.1, 1.2, 1.25, 1.9, 2.0, 2.6, 2.65, 4.0], 1.25),
    )
    assert farthest(torch.tensor(found[0][0])) == pytest.approx(0.35)  # the two differ
    for values, at in found:
        assert first_peak(torch.tensor(values)) == pytest.approx(at)
    for values in ([0.0, 1.0, 1.2, 3.0], [0.0, 0.5, 0.8, 1.0]):
        assert first_peak(torch.tensor(values)) == values[-1]


def test_knee_by_hand() -> None:
    """Below the line from (0, 0) to (1, 1) by .25 - .1, .5 - .2 and .75 - .3: that falls by .45, more than 1/4."""
    for knee in (farthest, first_peak):
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
    labels = DBSCAN(eps=farthest(torch.from_numpy(nearest)) * 1.0001, min_samples=2).fit_predict(theirs)
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
    for options in ({"flat": -1.0}, {"least_rounds": 0}, {"dim": 0}, {"reach": 0.0}, {"knee": "x"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FLUX(**options)  # type: ignore[arg-type]
