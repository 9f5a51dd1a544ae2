"""Distances to centres: against plain numpy, far from the origin, and to the bit where centres are equal."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from clusterfl import keys
from clusterfl.parts.assign import COLUMNS, divergence, nearest


def brute(models: torch.Tensor, centers: torch.Tensor) -> np.ndarray:
    gap = models.double().numpy()[:, None, :] - centers.double().numpy()[None, :, :]
    return np.asarray((gap**2).sum(axis=-1))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_nearest_is_the_squared_distance(m: int, k: int, p: int, seed: int) -> None:
    key = keys.key(seed)
    a, b = keys.normal(keys.fold_in(key, "a"), m, p), keys.normal(keys.fold_in(key, "b"), k, p)
    np.testing.assert_allclose(nearest(a, b).numpy(), brute(a, b), rtol=1e-9, atol=1e-12)


def test_nearest_is_accurate_where_float32_cancels() -> None:
    """Models that agree in four digits: |a|^2 - 2ab + |b|^2 in float32 would be noise."""
    base = 100.0 + keys.normal(keys.key(0), 3 * COLUMNS + 5)
    a = base + 1e-3 * keys.normal(keys.key(1), 4, len(base))
    b = base + 1e-3 * keys.normal(keys.key(2), 3, len(base))
    found, true = nearest(a, b).numpy(), brute(a, b)
    np.testing.assert_allclose(found, true, rtol=1e-9)
    naive = a.square().sum(1, keepdim=True) - 2 * a @ b.T + b.square().sum(1)
    assert np.abs(naive.numpy() - true).max() > true.max()


def test_a_model_at_its_centre_has_distance_zero() -> None:
    b = keys.normal(keys.key(3), 3, 5000)
    assert torch.allclose(nearest(b, b).diagonal(), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert nearest(b, b).min() >= 0


def test_equal_centres_tie_to_the_bit() -> None:
    a, one = keys.normal(keys.key(4), 24, 9001), keys.normal(keys.key(5), 1, 9001)
    centers = torch.cat([one, keys.normal(keys.key(6), 1, 9001), one, one, one])
    d = nearest(a, centers)
    assert all(torch.equal(d[:, 0], d[:, k]) for k in (2, 3, 4))


def test_divergence_is_kl_summed_over_samples() -> None:
    log_p = torch.log_softmax(3 * keys.normal(keys.key(7), 4, 6, 5), -1)
    log_q = torch.log_softmax(3 * keys.normal(keys.key(8), 2, 6, 5), -1)
    true = [[sum(entropy(p, q) for p, q in zip(a.exp(), b.exp(), strict=True)) for b in log_q] for a in log_p]
    np.testing.assert_allclose(divergence(log_p, log_q).numpy(), np.array(true), rtol=1e-5)


def test_divergence_of_certain_models_is_finite() -> None:
    sure = torch.log_softmax(torch.tensor([[[2000.0, 0.0]]]).double(), -1)
    other = torch.log_softmax(torch.tensor([[[0.0, 2000.0]]]).double(), -1)
    assert float(divergence(sure, other)) == 2000.0
    assert float(divergence(sure, sure)) == 0.0


def test_equal_centres_answer_alike_to_the_bit() -> None:
    log_p = torch.log_softmax(keys.normal(keys.key(9), 24, 33, 7), -1)
    d = divergence(log_p, log_p[:1].repeat(5, 1, 1))
    assert torch.equal(d, d[:, :1].expand_as(d))
