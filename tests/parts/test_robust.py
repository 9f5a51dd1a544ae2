"""Robust rules against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from clusterfl.parts.aggregate import Krum, mean_all
from clusterfl.parts.robust import median, most_central, trimmed_mean
from clusterfl.tree import flat, repeat, rows

from .stacks import models


def krum_by_hand(points: np.ndarray, f: int, keep: int) -> np.ndarray:
    n = len(points)
    scores = []
    for i in range(n):
        others = sorted(float(((points[i] - points[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: n - f - 2]))
    best = sorted(range(n), key=lambda i: (scores[i], i))[:keep]
    return points[best].mean(axis=0)


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_median(m: int) -> None:
    got = median(models(m))
    for name in ("a", "b"):
        np.testing.assert_allclose(got[name].numpy(), np.median(models(m)[name].numpy(), axis=0), rtol=1e-6)
    assert got["count"] == m - 1  # an integer buffer is copied


@pytest.mark.parametrize(("m", "cut"), [(1, 0), (5, 1), (8, 3), (20, 1)])
def test_trimmed_mean(m: int, cut: int) -> None:
    got = trimmed_mean(models(m), cut)
    for name in ("a", "b"):
        want = trim_mean(models(m)[name].numpy(), cut / m + 1e-9, axis=0)
        np.testing.assert_allclose(got[name].numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("m", "f", "keep"), [(3, 0, 1), (5, 1, 1), (9, 2, 1), (9, 3, 4), (12, 2, 8)])
def test_krum(m: int, f: int, keep: int) -> None:
    stack = models(m, seed=m)
    want = krum_by_hand(flat(stack).double().numpy(), f, keep)
    kept = most_central(stack, f, keep)
    assert rows(kept) == keep and kept["count"].tolist() == sorted(kept["count"].tolist()), "in client order"
    np.testing.assert_allclose(flat(repeat(mean_all(kept), 1))[0], want, rtol=1e-5)


def test_krum_needs_enough_clients() -> None:
    with pytest.raises(ValueError, match=r"f=1 should .* n >= 2f \+ 3"):
        most_central(models(4), 1)
    with pytest.raises(ValueError, match="keep=9"):
        most_central(models(9), 1, keep=9)
    with pytest.raises(ValueError, match="cut=2"):
        trimmed_mean(models(4), 2)
    # a cluster that is too small takes the median rather than stopping the run
    for name, t in Krum(0.25).combine(models(4)).items():
        assert torch.equal(t, median(models(4))[name])
