"""The random numbers: distributed as they should be, independent, and the same inside vmap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.func import vmap

from clusterfl import keys

N = 100_000


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_uniform_is_uniform(seed: int) -> None:
    u = keys.uniform(keys.key(seed), N).numpy()
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    counts, _ = np.histogram(u, bins=100, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_normal_is_normal(seed: int) -> None:
    z = keys.normal(keys.key(seed), N).numpy()
    assert np.isfinite(z).all()
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_every_bit_is_fair() -> None:
    bits = keys.bits(keys.key(3), N).numpy()
    ones = np.array([((bits >> b) & 1).sum() for b in range(64)])
    assert np.abs(ones - N / 2).max() < 5 * np.sqrt(N) / 2


@pytest.mark.parametrize("names", [(0, 1), ("a", "b"), (1, 2**32)])
def test_folds_are_independent(names: tuple[int | str, int | str]) -> None:
    a, b = (keys.uniform(keys.fold_in(keys.key(0), name), N).numpy() for name in names)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(N)
    table, _, _ = np.histogram2d(a, b, bins=10)
    assert stats.chisquare(table.ravel()).pvalue > 1e-3


def test_first_draws_of_neighbouring_keys_are_uniform_and_uncorrelated() -> None:
    draws = vmap(lambda k: keys.uniform(k, 2))(keys.split(keys.key(5), 20_000)).numpy()
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(len(draws))
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 5 / np.sqrt(len(draws))


def test_folding_is_stepwise_and_seeds_and_data_matter() -> None:
    root = keys.key(0)
    assert torch.equal(keys.fold_in(root, 1, "x"), keys.fold_in(keys.fold_in(root, 1), "x"))
    assert torch.equal(keys.split(root, 5), torch.stack([keys.fold_in(root, i) for i in range(5)]))
    found = {int(keys.fold_in(keys.key(s), a, b)) for s in range(10) for a in range(10) for b in range(10)}
    assert len(found) == 1000  # also (a, b) and (b, a)


@given(st.integers(0, 2**62), st.integers(1, 40), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_permutations_and_their_padding(seed: int, valid: int, extra: int) -> None:
    key = keys.key(seed)
    alone, padded = keys.permutation(key, valid), keys.permutation(key, valid + extra, valid)
    assert sorted(alone.tolist()) == list(range(valid))
    assert torch.equal(padded[:valid], alone)
    assert sorted(padded.tolist()) == list(range(valid + extra))


def test_shuffles_are_uniform() -> None:
    orders = vmap(lambda k: keys.permutation(k, 4))(keys.split(keys.key(1), 12_000))
    _, counts = np.unique(orders.numpy(), axis=0, return_counts=True)
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-3


def test_randint_and_choice() -> None:
    draws = keys.randint(keys.key(2), 7, 70_000)
    assert stats.chisquare(torch.bincount(draws, minlength=7).numpy()).pvalue > 1e-3
    chosen = vmap(lambda k: keys.choice(k, 10, 3))(keys.split(keys.key(2), 5_000))
    assert bool((chosen.diff(dim=1) > 0).all())  # ascending, so all different
    assert stats.chisquare(torch.bincount(chosen.flatten(), minlength=10).numpy()).pvalue > 1e-3


def test_the_same_draws_alone_and_inside_vmap() -> None:
    many, n = keys.split(keys.key(9), 20), torch.arange(1, 21)
    for draw in (
        lambda k: keys.uniform(k, 33),
        lambda k: keys.normal(k, 7, 3),
        lambda k: keys.bits(k, 5),
        lambda k: keys.randint(k, 1000, 11),
        lambda k: keys.fold_in(k, "a", 3),
    ):
        assert torch.equal(vmap(draw)(many), torch.stack([draw(k) for k in many]))
    stacked = vmap(lambda k, v: keys.permutation(k, 20, v))(many, n)
    assert torch.equal(stacked, torch.stack([keys.permutation(k, 20, v) for k, v in zip(many, n, strict=True)]))
    folded = vmap(lambda i: keys.fold_in(keys.key(0), i))(n)
    assert torch.equal(folded, torch.stack([keys.fold_in(keys.key(0), int(i)) for i in n]))


def test_draws_are_what_they_were() -> None:
    """Frozen: a change here changes every published number."""
    k = keys.fold_in(keys.key(0), "x", 1)
    assert int(k) == FROZEN[0]
    assert keys.bits(k, 2).tolist() == FROZEN[1]
    assert keys.permutation(k, 6).tolist() == FROZEN[2]
    assert keys.normal(k, 2).tolist() == pytest.approx(FROZEN[3], abs=1e-7)


def test_other_generators_follow_the_key() -> None:
    a, b = keys.key(0), keys.key(1)
    assert keys.numpy_rng(a).random() == keys.numpy_rng(a).random() != keys.numpy_rng(b).random()
    assert 0 <= keys.seed32(a) < 2**31 and keys.seed32(a) != keys.seed32(b)


FROZEN: tuple[int, list[int], list[int], list[float]] = (
    2783284446853549386,
    [-838225872807248797, 4722662753723248489],
    [2, 1, 5, 3, 4, 0],
    [-0.3046840727329254, -0.4151451587677002],
)
