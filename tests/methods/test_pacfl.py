"""PACFL: angles between clients' data, by hand and as in the authors' code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import PACFL, FedAvg
from clusterfl.methods.pacfl import angles, main_directions
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.hierarchy import merge
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

from .small import LOCAL


def flat_directions(*vectors: tuple[float, ...]) -> torch.Tensor:
    """A client with one class and these unit vectors."""
    return torch.tensor([vectors], dtype=torch.float64)


def test_angles_by_hand() -> None:
    """Two directions each in space: x and y against x turned by 30 degrees in the plane x-z, and z."""
    half, root = 0.5, math.sqrt(3) / 2
    a = flat_directions((1, 0, 0), (0, 1, 0)).unsqueeze(0)
    b = flat_directions((root, 0, half), (0, 0, 1)).unsqueeze(0)
    assert float(angles(a, b, "smallest")) == pytest.approx(30.0)
    assert float(angles(a, b, "mean")) == pytest.approx((30.0 + 90.0) / 2)
    turned = -b  # a singular vector may point either way
    assert float(angles(a, turned, "smallest")) == pytest.approx(30.0)
    missing = flat_directions((root, 0, half), (0, 0, 0)).unsqueeze(0)  # only one sample of the class
    assert float(angles(a, missing, "mean")) == pytest.approx(30.0)
    assert float(angles(a, torch.zeros_like(b), "smallest")) == 90.0
    assert float(angles(a, torch.zeros_like(b), "mean")) == 90.0


def test_main_directions_by_hand() -> None:
    """Rows along (3, 4) and, shorter, across it; a third direction does not exist."""
    x = torch.tensor([[3.0, 4.0], [6.0, 8.0], [-0.4, 0.3], [0.0, 0.0]], dtype=torch.float64)
    found = main_directions(x, 3)
    torch.testing.assert_close(found[0].float(), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(found[1].float(), torch.tensor([0.8, -0.6]))
    assert found.shape == (3, 2) and not found[2].any()
    assert not main_directions(torch.zeros(5, 2, dtype=torch.float64), 2).any()


def test_a_client_sends_the_singular_vectors_of_every_class() -> None:
    task, population = small_task(), small_population()
    got = Serial(task, population).cohort(torch.arange(3), keys.key(0)).run(PACFL(directions=2).describe)["directions"]
    assert float(got.flatten(1).norm(dim=1).max()) <= 1.0 + 1e-6  # the bound that it declares
    for i in range(3):
        x, y = population.train.of(i)
        for c in range(3):
            u, _, _ = np.linalg.svd(x[y == c].double().numpy().T, full_matrices=False)
            cos = np.abs((got[i, c].double().numpy() * math.sqrt(6)) @ u[:, :2])
            np.testing.assert_allclose(cos, np.eye(2), atol=1e-5)


def gold_clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Six clients of 5-dimensional samples >= 0 in two classes; the last three have their coordinates reversed."""
    found = []
    for i in range(6):
        x = keys.uniform(keys.fold_in(keys.key(4), i), 12, 5).double().numpy() * np.array([4.0, 2.0, 1.0, 0.5, 0.25])
        found.append((x[:, ::-1].copy() if i >= 3 else x, np.arange(12) % 2))
    return found


# `calculating_adjacency` of MMorafah/PACFL, src/clustering/hierarchical_clustering.py, on gold_clients with two
# singular vectors a class (numpy), in degrees
AUTHORS = [
    [0.0, 7.8074, 4.0132, 70.5317, 73.8950, 64.4973],
    [7.8074, 0.0, 5.5475, 66.5179, 70.8007, 70.3354],
    [4.0132, 5.5475, 0.0, 74.3567, 78.1714, 69.9790],
    [70.5317, 66.5179, 74.3567, 0.0, 3.9679, 5.8639],
    [73.8950, 70.8007, 78.1714, 3.9679, 0.0, 7.6130],
    [64.4973, 70.3354, 69.9790, 5.8639, 7.6130, 0.0],
]
MERGED = {5.0: 4, 20.0: 2}  # threshold -> number of clusters of its `hierarchical_clustering`, linkage 'average'


def test_angles_are_those_of_the_authors_code() -> None:
    parts = [(torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in gold_clients()]
    shards = Shards.from_parts(parts)
    task = Task(torch.nn.Linear(5, 2), 2)
    engine = Serial(task, Population(shards, shards, 6, 2))
    state = PACFL(k=2, directions=2).init(task, engine.cohort(torch.arange(6), keys.key(0)), keys.key(1))
    apart = angles(state.directions, state.directions, "smallest")
    for own in (slice(0, 3), slice(3, 6)):
        np.testing.assert_allclose(apart[own, own].fill_diagonal_(0.0), np.array(AUTHORS)[own, own], atol=1e-3)
    # across, some vectors point opposite ways: as lines they are nearer than the code's arrows
    assert bool((apart <= torch.tensor(AUTHORS) + 1e-3).fill_diagonal_(True).all()) and float(apart[:3, 3:].min()) > 30
    for threshold, clusters in MERGED.items():
        assert int(merge(apart, linkage="average", threshold=threshold).max()) + 1 == clusters
    assert state.assign.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("proximity", ["smallest", "mean"])
def test_turned_digits_are_found_before_training(proximity: str) -> None:
    population = build(DataConfig(clients=24, unseen=4, clusters=4, shift="rotate", samples=60), keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    method = PACFL(proximity=proximity, local=LOCAL)  # type: ignore[arg-type]
    found = Simulation(method, population, Stacked(task, population), Schedule(10, eval_every=10)).run()
    assert found.unseen_assign is not None
    assert clustering(torch.cat([found.records[0].assign, found.unseen_assign]), population.truth).ari == 1.0
    assert found.accuracy.mean > 0.8


def test_it_is_blind_to_names_of_classes() -> None:
    """The images of all groups are alike: nothing in them says who swapped labels."""
    config = DataConfig(clients=24, clusters=4, shift="permute_labels", samples=60)
    population = build(config, keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[8]), 10)
    state = play(PACFL(), Serial(task, population), 0)
    assert clustering(state.assign, population.truth).ari < 0.2


def test_clients_that_missed_the_start_are_placed_when_they_are_next_asked() -> None:
    population = build(DataConfig(clients=16, clusters=2, shift="rotate", samples=60), keys.key(1))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[8]), 10)
    state = play(PACFL(k=2, local=LOCAL), Flaky(Serial(task, population), 0.3), 0)
    assert not state.known.all()
    state = play(PACFL(k=2, local=LOCAL), Serial(task, population), 1, state=state)
    assert state.known.all() and clustering(state.assign, population.truth).ari == 1.0


def test_one_cluster_is_fedavg() -> None:
    check_same(PACFL(k=1, local=LOCAL), FedAvg(local=LOCAL))


def test_a_threshold_finds_k() -> None:
    assert PACFL(threshold=90.0).k is None
    task, population = small_task(), small_population()
    assert play(PACFL(threshold=90.0, local=LOCAL), Serial(task, population), 0).k == 1
    assert play(PACFL(threshold=0.0, local=LOCAL), Serial(task, population), 0).k == 12


def test_wrong_settings_say_so() -> None:
    wrong = [{"k": 0}, {"k": None}, {"threshold": -1.0}, {"directions": 0}, {"linkage": "ward"}, {"proximity": "x"}]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            PACFL(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k=13 should be at most"):
        play(PACFL(k=13), Serial(small_task(), small_population()), 0)
