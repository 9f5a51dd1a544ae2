"""Partition functions against what they define, computed another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl import keys
from clusterfl.data import partition
from clusterfl.errors import ConfigError, DataError

KEY = keys.key(7)


def labels_of(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


@given(
    n=st.integers(1, 40),
    samples=st.integers(2, 60),
    sigma=st.floats(0.1, 4.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_sizes_sum_and_stay_above_the_least(n: int, samples: int, sigma: float, seed: int) -> None:
    for how in partition.SIZES:
        sizes = partition.client_sizes(n, samples, how, keys.key(seed), sigma)
        assert sizes.sum() == n * samples and sizes.min() >= 2 and len(sizes) == n


def test_lognormal_sizes_have_the_spread_asked_for() -> None:
    sizes = partition.client_sizes(4000, 1000, "lognormal", KEY, sigma=0.5)
    assert np.log(sizes).std() == pytest.approx(0.5, rel=0.05)
    assert partition.client_sizes(3, 10, "equal", KEY).tolist() == [10, 10, 10]
    with pytest.raises(ConfigError, match="did you mean 'lognormal'"):
        partition.client_sizes(3, 10, "lognorm", KEY)


def test_apportion_is_the_largest_remainder_method() -> None:
    assert partition.apportion(np.array([1.0, 1.0, 1.0]), 10).tolist() == [4, 3, 3]
    assert partition.apportion(np.array([0.7, 0.2, 0.1]), 10, 2).tolist() == [6, 2, 2]
    with pytest.raises(DataError, match="total=2 should be at least 1"):
        partition.apportion(np.ones(3), 2, 1)


@pytest.mark.parametrize(("per_class", "each"), [(False, 0.3), (True, 3.0)])
def test_dirichlet_concentration_is_alpha_over_classes_unless_per_class(per_class: bool, each: float) -> None:
    mixes = partition.label_mixes(20_000, 10, 3.0, KEY, per_class=per_class)
    np.testing.assert_allclose(mixes.sum(1), 1)
    # Var of one share of Dirichlet(a, ..., a) with C entries: (1/C)(1 - 1/C) / (C a + 1)
    assert mixes.var(0).mean() == pytest.approx(0.1 * 0.9 / (10 * each + 1), rel=0.03)
    # the number of classes with at least 5 % of a client's samples: 4.2 against 8.2
    assert (mixes >= 0.05).sum(1).mean() == pytest.approx(4.2 if each < 1 else 8.2, abs=0.2)


def test_mixes_follow_the_prior_and_survive_tiny_alpha() -> None:
    prior = np.array([0.5, 0.5, 0.0])
    assert (partition.label_mixes(4, 3, None, KEY, prior) == prior).all()
    mixes = partition.label_mixes(4000, 3, 1e-4, KEY, prior)
    assert (mixes[:, 2] == 0).all() and np.isfinite(mixes).all()
    np.testing.assert_allclose(mixes.sum(1), 1)
    assert mixes[:, 0].mean() == pytest.approx(0.5, abs=0.03) and (mixes.max(1) > 0.99).mean() > 0.99
    with pytest.raises(ConfigError, match="alpha=0 should be above 0"):
        partition.label_mixes(4, 3, 0, KEY)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 25), min_size=1, max_size=8),
    iid=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=120, deadline=None)
def test_draw_gives_each_client_its_size_and_repeats_only_when_it_must(
    counts: list[int], sizes: list[int], iid: bool, seed: int
) -> None:
    labels, wanted, key = labels_of(*counts), np.array(sizes), keys.key(seed)
    mixes = None if iid else partition.label_mixes(len(sizes), len(counts), 1.0, key)
    drawn = partition.draw(labels, mixes, wanted, key, reuse=True)
    assert [len(r) for r in drawn.rows] == sizes
    needed = 0
    for rows in drawn.rows:
        held = rows.numpy()
        assert ((held >= 0) & (held < len(labels))).all()
        if iid:
            needed += max(len(held) - len(labels), 0)
        else:
            asked = np.bincount(labels[held], minlength=len(counts))
            needed += int(np.maximum(asked - counts, 0).sum())
    assert drawn.repeated == needed == sum(len(r) - len(r.unique()) for r in drawn.rows)
    holders = np.zeros(len(labels), dtype=int)
    for rows in drawn.rows:
        holders[rows.unique().numpy()] += 1
    assert drawn.shared == (holders > 1).sum()
    # the pool lasts as long as it can: nobody shares a row of a class that has not been used up
    everything = np.concatenate([r.numpy() for r in drawn.rows])
    for c in range(len(counts)) if not iid else []:
        dealt = np.bincount(everything, minlength=len(labels))[labels == c]
        assert dealt.max() - dealt.min() <= 1


def test_without_reuse_rows_are_disjoint_or_it_says_why_not() -> None:
    labels = labels_of(50, 50)
    drawn = partition.draw(labels, None, np.array([40, 60]), KEY, reuse=False)
    assert sorted(torch.cat(drawn.rows).tolist()) == list(range(100)) and drawn.shared == 0
    with pytest.raises(DataError, match=r"60 samples of class 0 .* it has 50"):
        partition.draw(labels, np.array([[1.0, 0.0]]), np.array([60]), KEY, reuse=False)
    with pytest.raises(DataError, match=r"101 samples should be at most the 100"):
        partition.draw_mixed([(labels, np.array([101]))], 2, 1.0, KEY, reuse=False)
    with pytest.raises(DataError, match=r"the last of 20 draws of alpha=0.01"):
        partition.draw_mixed([(labels_of(1, 99), np.full(10, 10))], 2, 0.01, KEY, reuse=False)


def test_retries_find_mixes_that_fit() -> None:
    labels = labels_of(60, 60)
    sizes = np.full(2, 50)
    fits = [partition.draw_mixed([(labels, sizes)], 2, 0.5, keys.key(s), reuse=False)[0] for s in range(10)]
    assert all(f.repeated == 0 and f.shared == 0 for f in fits)


def test_train_and_test_draws_share_their_mixes() -> None:
    labels = np.tile(np.arange(10), 300)
    train, test = partition.draw_mixed([(labels, np.full(20, 200)), (labels, np.full(20, 200))], 10, 1.0, KEY)
    a = np.stack([np.bincount(labels[r.numpy()], minlength=10) / 200 for r in train.rows])
    b = np.stack([np.bincount(labels[r.numpy()], minlength=10) / 200 for r in test.rows])
    assert np.abs(a - b).max() < 0.2 < np.abs(a - b[::-1]).max()


def test_class_groups_cover_every_row_once_and_follow_dirichlet() -> None:
    labels = np.tile(np.arange(9), 400)
    rows, main = partition.by_class_groups(labels, 12, 3, 0.4, KEY)
    assert sorted(torch.cat(rows).tolist()) == list(range(len(labels)))
    assert min(len(r) for r in rows) >= 2
    # classes of one group go to clients in the same proportions; that recovers the groups
    counts = np.stack([np.bincount(labels[r.numpy()], minlength=9) for r in rows]).astype(float)
    alike = np.corrcoef(counts.T) > 0.9
    assert sorted(alike.sum(1).tolist()) == [3] * 9
    groups = [np.flatnonzero(a) for a in np.unique(alike, axis=0)]
    share = np.stack([counts[:, g].sum(1) for g in groups], 1)
    assert len(np.unique(np.stack([share.argmax(1), main]), axis=1).T) == len(np.unique(main))


def test_class_groups_variance_is_that_of_dirichlet_over_clients() -> None:
    labels = np.zeros(4000, dtype=np.int64)
    shares = np.concatenate(
        [[len(r) / 4000 for r in partition.by_class_groups(labels, 10, 1, 2.0, keys.key(s))[0]] for s in range(150)]
    )
    assert shares.var() == pytest.approx(0.1 * 0.9 / 21, rel=0.15)


def test_class_groups_feed_every_client() -> None:
    labels = np.tile(np.arange(10), 30)
    rows, _ = partition.by_class_groups(labels, 150, 3, 0.01, KEY)
    assert [len(r) for r in rows] == [2] * 150
    with pytest.raises(DataError, match="clients=151 should be at most 150"):
        partition.by_class_groups(labels, 151, 3, 0.01, KEY)
    with pytest.raises(ConfigError, match="groups=11 should be between 1 and"):
        partition.by_class_groups(labels, 5, 11, 0.4, KEY)


def test_stratified_and_balanced() -> None:
    labels = labels_of(10, 20, 5)
    train, test = partition.stratified(labels, 0.2, KEY)
    assert np.bincount(labels[test]).tolist() == [2, 4, 1]
    assert sorted([*train, *test]) == list(range(35))
    rows = partition.balanced(labels, 12, [0, 1, 2], KEY)
    assert np.bincount(labels[rows]).tolist() == [4, 4, 4]
    assert np.bincount(labels[partition.balanced(labels, 100, [0, 1, 2], KEY)]).tolist() == [5, 5, 5]


def test_keys_decide_everything() -> None:
    labels = np.tile(np.arange(10), 50)
    a, b, c = (
        torch.cat(partition.draw_mixed([(labels, np.full(5, 40))], 10, 1.0, k)[0].rows) for k in (KEY, KEY, keys.key(8))
    )
    assert torch.equal(a, b) and not torch.equal(a, c)
