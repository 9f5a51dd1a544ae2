"""Populations against their config, with the source's rows found again by their pixels."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.registry import load_source, to_float
from clusterfl.data.scenario import DataConfig, build
from clusterfl.errors import ConfigError, DataError

from .made import made


def originals(population: Population, part: str, turns: dict[int, int] | None = None) -> list[list[bytes]]:
    """Every client's images turned back, as bytes."""
    assert population.truth is not None
    found = []
    for i, k in enumerate(population.truth.tolist()):
        x, _ = getattr(population, part).of(i)
        back = np.rot90(x.numpy(), -(turns or {}).get(k, k), axes=(2, 3))
        found.append([np.ascontiguousarray(image).tobytes() for image in back])
    return found


def test_defaults_are_four_rotations_of_digits() -> None:
    population = made()
    assert population.clients == 24 and population.unseen == 0 and population.classes == 10
    assert population.truth is not None and np.bincount(population.truth).tolist() == [6, 6, 6, 6]
    assert (population.truth.diff() < 0).any()  # interleaved, not sorted
    source = load_source("digits")
    assert population.input_shape == source.shape and population.train.x.dtype == torch.float32
    # turned back, each cluster's clients hold different images of the source's train part
    pool = {
        image.numpy().tobytes(): int(y)
        for image, y in zip(to_float(source.x_train, levels=16), source.y_train, strict=True)
    }
    images = originals(population, "train")
    for k in range(4):
        members = [i for i in range(24) if population.truth[i] == k]
        held = [image for i in members for image in images[i]]
        assert len(held) == 6 * (len(source.y_train) // 6) == len(set(held))
        assert set(held) <= set(pool)
        labels = [int(y) for i in members for y in population.train.of(i)[1]]
        assert labels == [pool[image] for image in held]


def test_two_clusters_may_hold_the_same_image_under_different_shifts() -> None:
    population = made(clients=4)
    images = originals(population, "train")
    assert set(images[0]) & set(images[1])


def test_the_same_key_gives_the_same_data_and_another_key_does_not() -> None:
    config = DataConfig(alpha=3.0, samples=30, unseen=3, indicators=2, shift="rotate+swap", sizes="lognormal")
    assert build(config, keys.key(1)).digest == build(config, keys.key(1)).digest
    assert build(config, keys.key(1)).digest != build(config, keys.key(2)).digest


def test_balanced_tests_are_balanced_and_shared_in_a_cluster() -> None:
    population = made(test_samples=200, alpha=0.5, samples=40)
    assert population.truth is not None
    source = load_source("digits")
    pool = {image.numpy().tobytes() for image in to_float(source.x_test, levels=16)}
    images = originals(population, "test")
    for i, k in enumerate(population.truth.tolist()):
        assert np.bincount(population.test.of(i)[1]).tolist() == [20] * 10
        assert set(images[i]) <= pool
        first = population.truth.tolist().index(k)
        assert torch.equal(population.test.rows_of(i), population.test.rows_of(first))
    assert len(population.test.x) == 4 * 200
    # asking for more than the rarest class has gives as many as there are
    few = made(test_samples=None)
    counts = np.bincount(few.test.of(0)[1])
    assert (counts == np.bincount(source.y_test).min()).all()


def test_own_tests_have_the_client_s_label_mix_and_none_of_its_train_samples() -> None:
    population = made(test="own", alpha=1.0, samples=80, clients=8)
    train, test = originals(population, "train"), originals(population, "test")
    assert population.train.sizes.tolist() == [80] * 8 and population.test.sizes.tolist() == [20] * 8
    everything = {image for client in train for image in client}
    assert not any(image in everything for client in test for image in client)
    for i in range(8):
        a, b = (np.bincount(p.of(i)[1], minlength=10) for p in (population.train, population.test))
        assert b[a == 0].sum() <= 1 and a.argmax() in np.argsort(b)[-2:]


def test_clients_of_very_few_samples() -> None:
    population = made(test="own", samples=2, clients=4)
    assert population.train.sizes.tolist() == [2] * 4 and population.test.sizes.tolist() == [1] * 4


def test_swapped_labels_reach_train_and_test() -> None:
    plain, swapped = made(shift="none", clients=4, clusters=1), made(shift="swap_labels", clients=4)
    source = load_source("digits")
    pool = {
        image.numpy().tobytes(): int(y)
        for x, y_all in ((source.x_train, source.y_train), (source.x_test, source.y_test))
        for image, y in zip(to_float(x, levels=16), y_all, strict=True)
    }
    maps = []
    for i in range(4):
        seen = np.arange(10)
        for shards in (swapped.train, swapped.test):
            x, y = shards.of(i)
            for image, label in zip(x, y, strict=True):
                seen[pool[image.numpy().tobytes()]] = int(label)
        maps.append(seen)
    assert all((a != b).sum() == 4 for j, a in enumerate(maps) for b in maps[:j])
    assert plain.truth is not None and plain.truth.tolist() == [0] * 4


def test_indicators_are_public_untransformed_balanced_and_nobody_s() -> None:
    population = made(indicators=5, shift="rotate+swap")
    assert population.indicators is not None
    x, y = population.indicators
    assert np.bincount(y).tolist() == [5] * 10
    source = load_source("digits")
    pool = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(to_float(source.x_train, levels=16), source.y_train, strict=True)
    }
    public = [image.numpy().tobytes() for image in x]
    assert [pool[image] for image in public] == y.tolist()
    held = {image for part in ("train", "test") for client in originals(population, part) for image in client}
    assert not held & set(public)
    with pytest.raises(DataError, match=r"indicators=1000 should be at most 1[0-9]{2}"):
        made(indicators=1000)


def test_unseen_clients_come_last_and_are_spread_over_clusters() -> None:
    population = made(clients=12, unseen=8, samples=20)
    assert population.clients == 12 and population.unseen == 8 and population.truth is not None
    assert np.bincount(population.truth[:12]).tolist() == [3] * 4
    assert np.bincount(population.truth[12:]).tolist() == [2] * 4
    images = originals(population, "train")
    for k in range(4):
        held = [image for i in range(20) if population.truth[i] == k for image in images[i]]
        assert len(held) == len(set(held)) == 5 * 20


def test_unequal_clusters_and_unequal_clients() -> None:
    population = made(clients=20, clusters=3, cluster_sizes=(0.6, 0.3, 0.1), samples=30, sizes="lognormal")
    assert population.truth is not None and np.bincount(population.truth).tolist() == [12, 6, 2]
    sizes = population.train.sizes
    assert int(sizes.sum()) == 600 and int(sizes.min()) >= 2 and len(sizes.unique()) > 5


def test_label_skew_is_alpha_over_classes() -> None:
    shares = {}
    for per_class in (False, True):
        population = made(clients=400, samples=50, alpha=3.0, alpha_per_class=per_class)
        y = population.train.y[population.train.rows].reshape(400, 50)
        mixes = torch.nn.functional.one_hot(y, 10).float().mean(1)
        # the variance of Dirichlet-multinomial shares with n = 50 draws
        a = 30.0 if per_class else 3.0
        assert float(mixes.var(0).mean()) == pytest.approx(0.09 / 50 * (50 + a) / (1 + a), rel=0.1)
        shares[per_class] = mixes
    assert "samples are held by more than one client" in " ".join(population.notes)


def test_without_reuse_a_split_that_cannot_be_says_so() -> None:
    with pytest.raises(DataError, match=r"reuse=false: the clients' 6000 samples should be at most the 1438"):
        made(samples=1000, reuse=False)
    with pytest.raises(DataError, match=r"the last of 20 draws of alpha=0\.1"):
        made(samples=230, reuse=False, alpha=0.1)
    with pytest.raises(DataError, match="set samples"):
        made(clients=4000)


def test_class_groups_are_soft_mixtures_of_all_samples() -> None:
    population = made(split="class_groups", clients=10, unseen=2, clusters=3, alpha=0.4)
    assert population.soft_truth and population.clients == 10 and population.truth is not None
    total = int(population.train.sizes.sum() + population.test.sizes.sum())
    assert total == 1797 == len(population.train.y) + len(population.test.y)  # both parts, each row once
    share = population.test.sizes / (population.train.sizes + population.test.sizes)
    big = population.train.sizes > 50
    assert ((share[big] - 0.2).abs() < 0.01).all() and population.test.sizes.min() >= 1


def test_flip_is_half_of_the_clients_upside_down_under_dirichlet() -> None:
    population = made(split="dirichlet", clients=10, clusters=2, alpha=0.1)
    assert population.truth is not None and np.bincount(population.truth).tolist() == [5, 5]
    source = load_source("digits")
    both = np.concatenate([source.x_train, source.x_test])
    pool = {image.numpy().tobytes() for image in to_float(both, levels=16)}
    turned = {0: 0, 1: 2}
    train, test = originals(population, "train", turned), originals(population, "test", turned)
    held = [image for client in (*train, *test) for image in client]
    assert len(held) == len(set(held)) == 1797 and set(held) == pool


def test_iid_is_one_true_cluster() -> None:
    population = made(shift="none")
    assert population.true_clusters == 1
    counts = np.stack([np.bincount(population.train.of(i)[1], minlength=10) for i in range(24)])
    assert (population.train.sizes == 1438 // 24).all() and counts.std(0).mean() < 4


def test_auto_is_resolved_for_the_record() -> None:
    config = DataConfig().resolved()
    assert (config.shift, config.test, config.clusters) == ("rotate", "balanced", 4)
    groups = DataConfig(split="class_groups", alpha=0.4).resolved()
    assert (groups.shift, groups.test, groups.clusters) == ("none", "own", 4)
    assert DataConfig(shift="none").resolved().clusters == 1
    assert replace(config, clients=8).resolved() == replace(config, clients=8)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"clusters": 9, "clients": 4}, "clusters=9 should be at most clients=4"),
        ({"alpha": 0}, "alpha=0 should be above 0"),
        ({"alpha": float("nan")}, "alpha=nan should be above 0"),
        ({"shift": "rotates"}, "did you mean 'rotate'"),
        ({"split": "cluster"}, "did you mean 'clusters'"),
        ({"sizes": "log"}, "sizes='log' should be a known choice"),
        ({"clients": 0}, "clients=0 should be at least 1"),
        ({"samples": 1}, "samples=1 should be at least 2"),
        ({"test_fraction": 1.0}, "test_fraction=1.0 should be between 0 and 1"),
        ({"split": "class_groups"}, "alpha=None should be a number"),
        (
            {"split": "class_groups", "alpha": 1.0, "shift": "rotate"},
            "should be 'none' with split='class_groups'",
        ),
        ({"angles": (0.0, 90.0)}, r"angles=\(0.0, 90.0\) should be 4 numbers"),
        ({"cluster_sizes": (1.0, 1.0, 1.0, 0.0)}, "should all be above 0"),
        ({"source": "digit"}, "did you mean 'digits'"),
        ({"split": "natural"}, "should have a source with clients of its own, not 'digits'"),
        (
            {"clusters": 46, "clients": 46, "shift": "swap_labels", "samples": 5},
            "clusters=46 should be at most 45",
        ),
    ],
)
def test_wrong_configs_say_what_to_do(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made(**fields)


def test_every_field_is_documented() -> None:
    assert all(f.metadata["doc"] for f in DataConfig.__dataclass_fields__.values())


def test_ten_thousand_clients_are_only_indices() -> None:
    load_source("digits")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    population = made(clients=10_000, samples=20, alpha=3.0)
    assert len(population.train.rows) == 200_000 and len(population.train.y) <= 4 * 1438
    assert len(population.test.y) <= 4 * 360
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kB; as samples, these clients would take 50 MB for train and 900 MB for test


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clusters": 2, "clients": 7},
        {"cluster_sizes": (0.7, 0.1, 0.1, 0.1)},
        {"split": "class_groups", "alpha": 0.4},
    ],
)
def test_drift_moves_clients_to_another_cluster_and_keeps_the_rest(fields: dict[str, Any]) -> None:
    population = made(**{"clients": 16, "unseen": 2, "drift_round": 5, **fields})
    assert population.drift is not None and population.truth is not None
    start, after = population.drift
    assert start == 5 and population.at(4) is population and population.at(5) is population.at(99) is after
    assert after.truth is not None and after.train.x is population.train.x  # one pool
    moved = torch.tensor(
        [not torch.equal(after.train.rows_of(i), population.train.rows_of(i)) for i in range(len(after.truth))]
    )
    assert torch.equal(moved, after.truth != population.truth)
    assert moved.any() and not moved[population.clients :].any()
    if not fields:
        assert int(moved.sum()) == 8
    # places are traded: the same shards, in another order
    assert sorted(after.train.sizes.tolist()) == sorted(population.train.sizes.tolist())
    assert made(clients=16).digest != made(clients=16, drift_round=5).digest != made(clients=16, drift_round=6).digest
    for i in range(len(after.truth)):
        x, y = after.train.of(i)
        assert len(x) == int(after.train.sizes[i]) and len(y)


def test_drift_needs_clusters() -> None:
    with pytest.raises(ConfigError, match="drift_round=3 should be unset where there is one cluster"):
        DataConfig(shift="none", drift_round=3)


def test_clients_that_are_dealt_too_little_can_be_left_out() -> None:
    """FedDSMIC's code keeps nobody below 10 samples; the paper's text does not say so."""
    whole = made(split="class_groups", clients=20, clusters=3, alpha=0.05)
    large = made(split="class_groups", clients=20, clusters=3, alpha=0.05, min_samples=10)
    sizes = [a + b for a, b in zip(whole.train.sizes.tolist(), whole.test.sizes.tolist(), strict=True)]
    kept = [i for i, n in enumerate(sizes) if n >= 10]
    assert 0 < len(kept) < 20 and large.clients == len(kept)
    assert whole.truth is not None and large.truth is not None and torch.equal(large.truth, whole.truth[kept])
    for j, i in enumerate(kept):
        assert torch.equal(large.train.of(j)[0], whole.train.of(i)[0])
    assert any("min_samples" in note and "left out" in note for note in large.notes)
    with pytest.raises(ConfigError, match="min_samples=10 should be unset"):
        DataConfig(min_samples=10)
    with pytest.raises(DataError, match="min_samples=100000 should be small enough"):
        made(split="class_groups", clients=20, clusters=3, alpha=0.05, min_samples=100000)
