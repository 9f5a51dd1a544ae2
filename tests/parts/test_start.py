"""Where centres start decides whether clustering works: each strategy, the freezing and the collapse."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.method import Clusters
from clusterfl.methods.fesem import FeSEM
from clusterfl.methods.ifca import IFCA
from clusterfl.metrics import clustering
from clusterfl.parts.local import SGD
from clusterfl.parts.start import Start
from clusterfl.task import Task
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import small_population, small_task

RULE = SGD(lr=0.1, batch=20, steps=20)
STRATEGIES = [
    "independent",
    "identical-noise",
    "random-partition",
    "kmeans-local",
    "kmeans-local-exact",
    "loss-pp",
    "resample-balanced",
    "shared-body",
    "misplaced",
    "kin",
]


@cache
def rotated_digits() -> Population:
    return build(DataConfig(source="digits", clients=24, clusters=4, shift="rotate", samples=150), keys.key(0))


def digits_task() -> Task:
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), 10)


def ids_over_rounds(method: Any, start: Start, rounds: int, seed: int = 0) -> list[Tensor]:
    """Every client's cluster before the first round and after each."""
    engine = Stacked(digits_task(), rotated_digits())
    ids = torch.arange(24)
    cohort = engine.cohort(ids, keys.fold_in(keys.key(seed), "init"))
    state = start.clusters(engine.task, cohort, keys.key(seed), 4, RULE)
    seen = [state.assign]
    for t in range(rounds):
        state = method.round(state, engine.cohort(ids, keys.fold_in(keys.key(seed), t), t))
        seen.append(state.assign)
    return seen


def ari(assign: Tensor) -> float:
    truth = rotated_digits().truth
    assert truth is not None
    return clustering(assign, truth[:24]).ari


def small_start(start: Start, k: int = 2, drop: float = 0.0) -> Clusters:
    task = small_task()
    engine = Flaky(Serial(task, small_population()), drop)
    return start.clusters(task, engine.cohort(torch.arange(12), keys.key(1)), keys.key(2), k, SGD(lr=0.1, batch=10))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gives_k_finite_centres_and_ids_and_repeats_itself(name: Any) -> None:
    first, again = small_start(Start(name)), small_start(Start(name))
    assert_equal(first, again, name)
    assert first.k == 2 and first.assign.shape == (12,)
    assert int(first.assign.min()) >= 0 and int(first.assign.max()) < 2
    assert all(bool(torch.isfinite(t).all()) for t in first.centers.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_survives_drop_outs(name: Any) -> None:
    got = small_start(Start(name, tries=2000), drop=0.3)
    assert all(bool(torch.isfinite(t).all()) for t in got.centers.values())


@pytest.mark.parametrize("k", [0, 13])
def test_an_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k={k} should be between 1 and the number of clients, 12"):
        small_start(Start("independent"), k)


def test_independent_nets_freeze_fesem() -> None:
    seen = ids_over_rounds(FeSEM(k=4, local=RULE, proximal=0.0), Start("independent"), 6)
    assert all(torch.equal(s, seen[0]) for s in seen), "no client ever moves"
    assert ari(seen[-1]) < 0.2


def test_misplaced_clients_are_a_third_and_ifca_takes_them_back() -> None:
    right, wrong = small_start(Start("kmeans-local")), small_start(Start("misplaced"))
    assert int((right.assign != wrong.assign).sum()) == 4
    for seed in range(2):
        seen = ids_over_rounds(IFCA(k=4, local=RULE), Start("misplaced"), 4, seed)
        assert ari(seen[0]) < 0.6 and ari(seen[-1]) == 1.0


def test_identical_nets_collapse_into_one_cluster_by_ties() -> None:
    for method in (FeSEM(k=4, local=RULE, proximal=0.0), IFCA(k=4, local=RULE)):
        seen = ids_over_rounds(method, Start("identical-noise", noise=0.0), 3)
        assert seen[-1].tolist() == [0] * 24, f"{method.name}: every tie goes to the lowest index"


def test_kmeans_of_local_models_finds_the_clusters_before_the_first_round() -> None:
    for seed in range(3):
        seen = ids_over_rounds(FeSEM(k=4, local=RULE, proximal=0.0), Start("kmeans-local"), 3, seed)
        assert ari(seen[0]) == 1.0 and ari(seen[-1]) == 1.0


def test_farthest_first_by_loss_recovers_the_clusters_with_ifca() -> None:
    for seed in range(3):
        seen = ids_over_rounds(IFCA(k=4, local=RULE), Start("loss-pp"), 6, seed)
        assert ari(seen[-1]) == 1.0


def test_ifca_from_independent_nets_moves_but_may_lose_a_cluster() -> None:
    ends = []
    for seed in range(3):
        seen = ids_over_rounds(IFCA(k=4, local=RULE), Start("independent"), 12, seed)
        assert not torch.equal(seen[0], seen[-1]), "loss on data does not freeze"
        ends.append(ari(seen[-1]))
    assert max(ends) > 0.5


def test_a_random_partition_starts_without_knowing_anything() -> None:
    seen = ids_over_rounds(FeSEM(k=4, local=RULE, proximal=0.0), Start("random-partition"), 8)
    assert ari(seen[0]) < 0.2
    assert np.bincount(seen[0]).tolist() == [6, 6, 6, 6]
    assert ari(seen[-1]) > ari(seen[0]), "unlike independent nets it does not freeze"


def test_resampling_is_balanced_and_bounded() -> None:
    got = small_start(Start("resample-balanced"))
    assert int(torch.bincount(got.assign, minlength=2).min()) >= 0.35 * 12
    with pytest.raises(ValueError, match=r"share=0.9 .* tries=3 draws of k=2 nets"):
        small_start(Start("resample-balanced", share=0.9, tries=3))


def test_a_shared_body_has_one_body_and_fresh_heads() -> None:
    got = small_start(Start("shared-body", pretrain=2, warmup=0))
    assert torch.equal(got.centers["0.weight"][0], got.centers["0.weight"][1])
    assert not torch.equal(got.centers["2.weight"][0], got.centers["2.weight"][1])
    warm = small_start(Start("shared-body", pretrain=2, warmup=2))
    assert not torch.equal(warm.centers["0.weight"][0], warm.centers["0.weight"][1])
