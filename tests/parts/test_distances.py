"""Distances to centres: against plain numpy, far from the origin, and to the bit where centres are equal."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from clusterfl import keys
from clusterfl.parts.distances import COLUMNS, class_distance, kl_divergence, outputs, squared_distances
from clusterfl.testing.small import CLASSES, small_task
from clusterfl.tree import row
from tests.helpers import by_hand

KEY = keys.key(5)


def brute(models: torch.Tensor, centers: torch.Tensor) -> np.ndarray:
    gap = models.double().numpy()[:, None, :] - centers.double().numpy()[None, :, :]
    return np.asarray((gap**2).sum(axis=-1))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_distances_are_squared_and_euclidean(m: int, k: int, p: int, seed: int) -> None:
    key = keys.key(seed)
    a, b = keys.normal(keys.fold_in(key, "a"), m, p), keys.normal(keys.fold_in(key, "b"), k, p)
    np.testing.assert_allclose(squared_distances(a, b).numpy(), brute(a, b), rtol=1e-9, atol=1e-12)


def test_distances_are_accurate_where_float32_cancels() -> None:
    """Models that agree in four digits: |a|^2 - 2ab + |b|^2 in float32 would be noise."""
    base = 100.0 + keys.normal(keys.key(0), 3 * COLUMNS + 5)
    a = base + 1e-3 * keys.normal(keys.key(1), 4, len(base))
    b = base + 1e-3 * keys.normal(keys.key(2), 3, len(base))
    found, true = squared_distances(a, b).numpy(), brute(a, b)
    np.testing.assert_allclose(found, true, rtol=1e-9)
    naive = a.square().sum(1, keepdim=True) - 2 * a @ b.T + b.square().sum(1)
    assert np.abs(naive.numpy() - true).max() > true.max()


def test_a_model_at_its_centre_has_distance_zero() -> None:
    b = keys.normal(keys.key(3), 3, 5000)
    assert torch.allclose(squared_distances(b, b).diagonal(), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert squared_distances(b, b).min() >= 0


def test_equal_centres_tie_to_the_bit() -> None:
    a, one = keys.normal(keys.key(4), 24, 9001), keys.normal(keys.key(5), 1, 9001)
    centers = torch.cat([one, keys.normal(keys.key(6), 1, 9001), one, one, one])
    d = squared_distances(a, centers)
    assert all(torch.equal(d[:, 0], d[:, k]) for k in (2, 3, 4))


def test_divergence_is_kl_summed_over_samples() -> None:
    log_p = torch.log_softmax(3 * keys.normal(keys.key(7), 4, 6, 5), -1)
    log_q = torch.log_softmax(3 * keys.normal(keys.key(8), 2, 6, 5), -1)
    true = [[sum(entropy(p, q) for p, q in zip(a.exp(), b.exp(), strict=True)) for b in log_q] for a in log_p]
    np.testing.assert_allclose(kl_divergence(log_p, log_q).numpy(), np.array(true), rtol=1e-5)


def test_divergence_of_certain_models_is_finite() -> None:
    sure = torch.log_softmax(torch.tensor([[[2000.0, 0.0]]]).double(), -1)
    other = torch.log_softmax(torch.tensor([[[0.0, 2000.0]]]).double(), -1)
    assert float(kl_divergence(sure, other)) == 2000.0
    assert float(kl_divergence(sure, sure)) == 0.0


def test_equal_centres_answer_alike_to_the_bit() -> None:
    log_p = torch.log_softmax(keys.normal(keys.key(9), 24, 33, 7), -1)
    d = kl_divergence(log_p, log_p[:1].repeat(5, 1, 1))
    assert torch.equal(d, d[:, :1].expand_as(d))


def test_class_distance_is_equation_5_by_hand() -> None:
    task = small_task()
    centers, mine = task.init_stack(KEY, 2), task.init(keys.fold_in(KEY, "mine"))
    x = keys.normal(KEY, 2, CLASSES, 4, 6)
    h = torch.stack([outputs(task, row(centers, j), x[j], 2) for j in range(2)])
    found = class_distance(task, mine, x, h)
    for j in range(2):
        for k in range(CLASSES):
            gaps = [np.abs(by_hand(mine, v) - by_hand(row(centers, j), v)).sum() for v in x[j, k].double().numpy()]
            assert abs(float(found[j, k]) - np.mean(gaps)) < 1e-5
    own = class_distance(task, row(centers, 1), x, h)
    assert torch.equal(own[1], torch.zeros(CLASSES)) and bool((own[0] > 0).all())


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_class_distance_is_twice_a_total_variation(seed: int, scale: float) -> None:
    task, key = small_task(), keys.key(seed)
    theta = {n: scale * t for n, t in task.init(key).items()}
    x = keys.normal(keys.fold_in(key, "x"), 2, CLASSES, 3, 6)
    h = torch.softmax(scale * keys.normal(keys.fold_in(key, "h"), 2, CLASSES, 3, CLASSES), dim=-1)
    d = class_distance(task, theta, x, h)
    assert d.shape == (2, CLASSES) and bool((d >= 0).all()) and bool((d <= 2 + 1e-5).all())


def test_outputs_in_pieces() -> None:
    task = small_task()
    theta, x = task.init(KEY), keys.normal(KEY, 3, 401, 6)
    found = outputs(task, theta, x, 2)
    torch.testing.assert_close(found[1, 7], task.probabilities(theta, x[1, 7:8])[0])
    assert found.shape == (3, 401, CLASSES)
