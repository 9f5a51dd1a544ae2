"""Robust rules against brute force, and what they promise under attack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Call, Chunk
from clusterfl.engines import Serial
from clusterfl.engines.flaky import Wrapper
from clusterfl.methods import IFCA, FedAvg
from clusterfl.parts.local import SGD
from clusterfl.parts.robust import (
    CombineBy,
    aggregate_by,
    combine,
    krum,
    median,
    trimmed_kmeans,
    trimmed_mean,
)
from clusterfl.testing import check_method, play, small_population, small_task
from clusterfl.tree import Tree, flat, row

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def models(m: int, seed: int = 0) -> Tree:
    key = keys.key(seed)
    return {
        "a": keys.normal(keys.fold_in(key, "a"), m, 3, 2),
        "b": keys.normal(keys.fold_in(key, "b"), m, 4),
        "count": torch.arange(m),
    }


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
    np.testing.assert_allclose(flat({n: t.unsqueeze(0) for n, t in krum(stack, f, keep).items()})[0], want, rtol=1e-5)


def test_krum_needs_enough_clients() -> None:
    with pytest.raises(ValueError, match=r"f=1 should .* n >= 2f \+ 3"):
        krum(models(4), 1)
    with pytest.raises(ValueError, match="keep=9"):
        krum(models(9), 1, keep=9)
    with pytest.raises(ValueError, match="cut=2"):
        trimmed_mean(models(4), 2)
    # a cluster that is too small takes the median rather than stopping the run
    for name, t in combine(models(4), "krum", 0.25).items():
        assert torch.equal(t, median(models(4))[name])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(5, 15), share=st.floats(0.0, 0.49), rule=st.sampled_from(["median", "trimmed", "krum", "multi-krum"])
)
def test_attackers_cannot_leave_the_honest_range(n: int, share: float, rule: str) -> None:
    liars = int(share * n + 1e-9)
    stack = {"w": torch.cat([keys.normal(keys.key(n), n - liars, 6), torch.full((liars, 6), 1e6)])}
    for lie in (1e6, -1e6, torch.nan, torch.inf):
        stack["w"][n - liars :] = lie
        got = combine(stack, rule, share)["w"]  # type: ignore[arg-type]
        honest = stack["w"][: n - liars]
        assert bool((got >= honest.min(0).values - 1e-5).all() and (got <= honest.max(0).values + 1e-5).all())


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "krum", "multi-krum"])
def test_by_cluster(rule: str) -> None:
    theta, s = models(13), torch.tensor([0, 2] * 6 + [2])
    old = models(3, seed=9)
    got = aggregate_by(theta, s, old=old, rule=rule, attackers=0.2)  # type: ignore[arg-type]
    for k in (0, 2):
        part = {n: t[s == k] for n, t in theta.items()}
        want = row(aggregate_by(part, torch.zeros(len(part["b"]), dtype=torch.int64), old=row_of(old, k), rule=rule), 0)  # type: ignore[arg-type]
        for name, t in want.items():
            torch.testing.assert_close(got[name][k], t)
    for name, t in old.items():
        assert torch.equal(got[name][1], t[1])  # the empty cluster keeps its model
    if rule != "mean":
        chunks = CombineBy(old, rule, 0.2, by="s")  # type: ignore[arg-type]
        for at in torch.arange(13).split(5):
            chunks.add(at, {"theta": {n: t[at] for n, t in theta.items()}, "s": s[at]})
        assert all(torch.equal(t, got[n]) for n, t in chunks.result().items())


def row_of(stack: Tree, k: int) -> Tree:
    return {n: t[k : k + 1] for n, t in stack.items()}


def test_only_the_mean_is_weighted() -> None:
    theta, s, old = models(4), torch.zeros(4, dtype=torch.int64), models(1, seed=9)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])
    want = (theta["b"] * w.unsqueeze(1)).sum(0) / 10
    torch.testing.assert_close(aggregate_by(theta, s, old=old, weights=w)["b"][0], want)
    assert torch.equal(aggregate_by(theta, s, old=old, rule="median", weights=w)["b"][0], median(theta)["b"])


# -- clustering -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_trimmed_kmeans_ignores_outliers(seed: int) -> None:
    truth = torch.arange(24) % 4
    blobs = 10.0 * torch.eye(4, 30)[truth] + keys.normal(keys.key(seed), 24, 30)
    blobs[:2] = torch.tensor([[1e4], [-1e4]])  # two of cluster 0 and 1 lie
    labels, centers = trimmed_kmeans(blobs, 4, keys.key(seed), attackers=0.2)
    honest = labels[2:]
    assert len(honest.unique()) == 4
    assert all(len(honest[truth[2:] == k].unique()) == 1 for k in range(4))
    assert float(centers.abs().max()) < 20
    again = trimmed_kmeans(blobs, 4, keys.key(seed), attackers=0.2)
    assert torch.equal(again[0], labels) and torch.equal(again[1], centers)


def test_trimmed_kmeans_of_equal_points() -> None:
    labels, centers = trimmed_kmeans(torch.ones(6, 3), 2, keys.key(0))
    assert torch.equal(labels, torch.zeros(6, dtype=torch.int64)) and bool(torch.isfinite(centers).all())


# -- in methods ---------------------------------------------------------------------------------------------


class Liars(Wrapper):
    """Some clients send their model multiplied by -50."""

    def __init__(self, inner: Serial, ids: set[int]) -> None:
        super().__init__(inner)
        self.ids = ids

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            scale = torch.tensor([-50.0 if int(i) in self.ids else 1.0 for i in call.ids[chunk.positions]])
            yield Chunk(chunk.positions, {n: self._lie(v, scale) for n, v in chunk.fields.items()})

    def _lie(self, value: Tensor | Tree, scale: Tensor) -> Tensor | Tree:
        if isinstance(value, Tensor):
            return value
        return {n: t * scale.reshape(-1, *([1] * (t.dim() - 1))) for n, t in value.items()}


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "multi-krum"])
def test_fedavg_withstands_what_breaks_the_mean(rule: str) -> None:
    task, population = small_task(), small_population()

    def size(aggregate: str) -> float:
        engine = Liars(Serial(task, population), {3, 8})
        theta = play(FedAvg(LOCAL, aggregate=aggregate), engine).theta  # type: ignore[arg-type]
        return max(float(t.abs().max()) for t in theta.values())

    assert size(rule) < 3 < size("mean")


def test_robust_methods_conform() -> None:
    check_method(IFCA(k=2, local=LOCAL, aggregate="trimmed"))


def test_the_mean_still_streams() -> None:
    plain = play(FedAvg(LOCAL), Serial(small_task(), small_population())).theta
    share = play(replace(FedAvg(LOCAL), attackers=0.4), Serial(small_task(), small_population())).theta
    assert all(torch.equal(plain[n], share[n]) for n in plain)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"attackers=0\.5 should"):
        FedAvg(attackers=0.5)
    with pytest.raises(ValueError, match="aggregate='max' should be one of mean, median"):
        IFCA(aggregate="max")  # type: ignore[arg-type]
