"""LEAF's synthetic tasks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from clusterfl import keys
from clusterfl.data import synthetic
from clusterfl.data.scenario import DataConfig, build
from clusterfl.errors import ClusterflError, ConfigError, DataError

from .made import KEY, made


def test_synthetic_is_leaf_s_generator() -> None:
    clusters, sizes = np.array([0, 1, 0, 1]), np.array([4000, 4000, 50, 50])
    source = synthetic.generate("synthetic_argmax:20x5", clusters, sizes, KEY)
    assert source.shape == (20,) and source.groups_train is not None
    x = source.x_train[source.groups_train == 0]
    assert isinstance(x, np.ndarray)
    np.testing.assert_allclose(x.std(0), np.arange(1, 21) ** -0.6, rtol=0.06)


def test_synthetic_clusters_have_linear_models_of_their_own() -> None:
    """A linear model of some tasks serves the other tasks of their cluster, and those of another far less."""
    clusters = np.arange(40) % 2
    mine, others = np.split(np.argsort(clusters, kind="stable"), 2)
    same, other = [], []
    for seed in range(3):  # a single draw may have two centres close together
        source = synthetic.generate("synthetic_argmax:10x4", clusters, np.full(40, 60), keys.key(seed))
        x, y = np.asarray(source.x_train).reshape(40, 60, 10), source.y_train.reshape(40, 60)
        model = LogisticRegression(C=100, max_iter=100).fit(x[mine[:15]].reshape(-1, 10), y[mine[:15]].ravel())
        same.append(model.score(x[mine[15:]].reshape(-1, 10), y[mine[15:]].ravel()))
        other.append(model.score(x[others].reshape(-1, 10), y[others].ravel()))
    assert np.mean(same) > 0.8 and np.mean(same) - np.mean(other) > 0.3


def test_synthetic_normalises_over_samples_as_the_published_code() -> None:
    """The same draws give logits; LEAF's code takes exp, divides by the sum over samples, then the argmax."""
    many = synthetic.generate("synthetic", np.zeros(40, int), np.full(40, 200), KEY)
    few = synthetic.generate("synthetic_argmax", np.zeros(40, int), np.full(40, 200), KEY)
    assert np.array_equal(many.x_train, few.x_train)  # type: ignore[arg-type]

    def largest(source: Any) -> float:
        return float(np.mean([np.bincount(y).max() / 200 for y in source.y_train.reshape(40, 200)]))

    assert largest(many) < 0.4 < 0.6 < largest(few)


def test_synthetic_population() -> None:
    config = DataConfig(source="synthetic:20x5", clients=12, unseen=3, clusters=3, samples=40)
    population = build(config, KEY)
    assert population.clients == 12 and population.truth is not None and population.input_shape == (20,)
    assert np.bincount(population.truth[:12]).tolist() == [4, 4, 4]
    assert population.train.sizes.tolist() == [40] * 15 and population.test.sizes.tolist() == [10] * 15
    sizes = made(source="synthetic", clients=300).train.sizes
    assert int(sizes.max()) <= 800 and int(sizes.min()) >= 4 and len(sizes.unique()) > 30
    # the truth of a client is that of its task, whatever order clients are taken in
    source = synthetic.generate("synthetic:20x5", np.array([0, 1, 2]), np.full(3, 10), KEY)
    assert source.group_truth is not None and source.group_truth.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="should end in DIMSxCLASSES"):
        made(source="synthetic:20", clients=4)
    with pytest.raises(ConfigError, match="should be 'natural' or 'dirichlet' with source='synthetic'"):
        DataConfig(source="synthetic", split="clusters")


def test_synthetic_pool_is_dealt_out_under_renamed_labels() -> None:
    """FCCA's Synthetic: one linear rule for all, read through each cluster's own renaming of the labels."""
    fields: dict[str, Any] = {"split": "dirichlet", "alpha": 5.0, "shift": "permute_labels", "clients": 6}
    population = made(source="synthetic_argmax:10x4", clusters=2, samples=500, **fields)
    assert population.truth is not None and population.classes == 4
    scores = np.zeros((6, 6))
    for i in range(6):
        model = LogisticRegression(C=100, max_iter=200).fit(*population.train.of(i))
        scores[i] = [model.score(*population.test.of(j)) for j in range(6)]
    same = (population.truth[:, None] == population.truth).numpy()
    assert scores[same].min() > 0.75 and scores[~same].mean() < 0.5


def test_planted_maps_are_found_by_least_squares() -> None:
    """Clients of a cluster share a map, those of other clusters have another."""
    config = DataConfig(source="linear-regression:12x2", clients=8, unseen=2, clusters=2, samples=60, noise=0.01)
    population = build(config, KEY, regression=True)
    assert population.regression and population.outputs == 2 and population.train.y.dtype == torch.float32
    assert population.train.sizes.tolist() == [60] * 10 and population.test.sizes.tolist() == [15] * 10
    assert population.truth is not None
    fits = [np.linalg.lstsq(*(t.double().numpy() for t in population.train.of(i)), rcond=None)[0] for i in range(10)]
    for i, j in itertools.combinations(range(10), 2):
        same = population.truth[i] == population.truth[j]
        assert (np.abs(fits[i] - fits[j]).max() < 0.05) == bool(same)
    np.testing.assert_allclose(np.linalg.norm(fits[0], axis=0), 1.0, atol=0.02)
    assert build(config, KEY, regression=True).digest == population.digest


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"source": "linear-regression:0"}, "should end in DIMS or DIMSxOUTPUTS"),
        ({"source": "linear-regression", "split": "dirichlet", "alpha": 1.0}, "split='dirichlet' should be 'natural'"),
        ({"source": "digits", "noise": 0.1}, "noise=0.1 should be unset"),
        ({"source": "linear-regression", "noise": -1.0}, "noise=-1.0 should be at least 0"),
        ({"source": "linear-regression", "shift": "swap_labels"}, "shift='swap_labels' goes by classes"),
        ({"source": "linear-regression", "indicators": 3}, "indicators=3 goes by classes"),
        ({"source": "linear-regression", "test": "balanced"}, "test='balanced' goes by classes"),
        ({"source": "digits"}, "source='digits' should have targets that are numbers"),
    ],
)
def test_what_numbers_cannot_be_asked(data: dict[str, Any], says: str) -> None:
    with pytest.raises(ClusterflError, match=says):
        build(DataConfig(**data), KEY, regression=True)


def test_numbers_need_a_loss_of_numbers() -> None:
    with pytest.raises(DataError, match=r"targets that are numbers: set loss = 'mse' in \[task\]"):
        build(DataConfig(source="linear-regression"), KEY)
