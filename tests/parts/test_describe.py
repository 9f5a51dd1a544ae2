"""What clients say about their data: bounded, right, and blurred by as much as it claims."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.parts.describe import Describe, bins, changed, read, summaries, symmetric, triangle
from clusterfl.parts.features import random_features
from clusterfl.parts.gaussian import multiplier
from clusterfl.parts.unlabelled import misfits
from clusterfl.task import Task


def client(x: Tensor, y: Tensor, classes: int = 3, seed: int = 0) -> Client:
    shard = Shard(x, y, torch.arange(len(y)), len(y))
    return Client(Task(nn.Linear(1, classes), classes), shard, shard, keys.key(seed), smallest=len(y))


def images(n: int, seed: int = 0, channels: int = 1, side: int = 12) -> Tensor:
    return keys.normal(keys.key(seed), n, channels, side, side)


def said(me: Client, **options: Any) -> dict[str, Tensor]:
    return dict(Describe(**options).describe(me))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x", [images(9), images(9, channels=3), images(9, side=4), keys.normal(keys.key(1), 9, 5), 50 * images(9)]
)
def test_no_sample_is_longer_than_one(x: Tensor) -> None:
    z = random_features(x, 16)
    assert z.shape[1] <= 16 and float(z.norm(dim=1).max()) <= 1.0 + 1e-6 and float(z.std()) > 0


def test_shapes_light_and_contrast_are_told_apart() -> None:
    """Of 64 features 48 do not depend on light, 12 more not on contrast, and 4 not on the sign of it."""
    x = images(4)
    plain, brighter = random_features(x, 64), random_features(x + 2.0, 64)
    faded, negative = random_features(0.4 * x, 64), random_features(-x, 64)
    assert torch.allclose(plain[:, :48], brighter[:, :48], atol=1e-4)
    assert torch.allclose(plain[:, :60], faded[:, :60], atol=1e-4)
    assert torch.allclose(plain[:, 48:60], -negative[:, 48:60], atol=1e-5)
    assert torch.allclose(plain[:, 60:], negative[:, 60:], atol=1e-6)
    assert torch.allclose(0.4 * plain[:, 60:], faded[:, 60:], atol=1e-6)
    assert float(plain[:, 48:60].std()) > 0.01


def test_tokens_are_counted() -> None:
    x = torch.tensor([[1, 2, 3], [3, 2, 1], [1, 1, 1], [4, 5, 6]])
    z = random_features(x, 16)
    assert torch.equal(z[0], z[1]) and float(z[2].norm()) == 1.0 and not torch.equal(z[0], z[3])


def test_the_server_reads_means_and_scatter() -> None:
    x, y = images(30), torch.arange(30) % 3
    y[y == 2] = 1
    got = {n: t.unsqueeze(0) for n, t in said(client(x, y), dims=8).items()}
    known, z = read(got, Describe(8)), random_features(x, 8).double()
    assert torch.allclose(known.counts, torch.tensor([[10.0, 20.0, 0.0]]).double())
    for c in (0, 1):
        assert torch.allclose(known.means[0, c], z[y == c].mean(dim=0), atol=1e-6)
    residuals = z - known.means[0][y]
    assert torch.allclose(known.scatter, residuals.T @ residuals, atol=1e-5) and float(known.freedom) == pytest.approx(
        28.0
    )
    assert torch.allclose(symmetric(triangle(known.scatter)), known.scatter)
    assert float(triangle(known.scatter).norm()) == pytest.approx(float(known.scatter.norm()))


def test_fields_stay_within_their_bounds_and_a_sample_moves_them_by_no_more_than_declared() -> None:
    x, y = images(20), torch.arange(20) % 3
    first = said(client(x, y))
    for name, kind in Describe.describe.__on_client__.items():  # type: ignore[attr-defined]
        if name in first and getattr(kind, "bound", None):
            assert float(first[name].norm()) <= kind.bound + 1e-6, name
    for j, label in ((0, 0), (3, 2)):
        other, labels = x.clone(), y.clone()
        other[j], labels[j] = 9.0 * images(1, seed=5)[0], label
        moved = said(client(other, labels))
        far = math.sqrt(sum(float((moved[n] - first[n]).square().sum()) for n in ("shares", "means", "squares")))
        assert 0 < 20 * far <= Describe().sensitivity


def test_noise_is_what_it_says_and_the_model_knows_it() -> None:
    x, y = images(40), torch.arange(40) % 2
    clear = said(client(x, y, 2), dims=8)
    noisy = [said(client(x, y, 2, seed), dims=8, noise=0.5) for seed in range(200)]
    spread = torch.stack([(r["means"] - clear["means"]).flatten() for r in noisy]).std()
    assert float(spread) == pytest.approx(0.5 * math.sqrt(6.0) / 40, rel=0.05)
    stacked = {n: torch.stack([r[n] for r in noisy]) for n in clear}
    known = read(stacked, Describe(8, noise=0.5))
    s, whiten = summaries(known.counts, known.means, known.blur, known.scatter, float(known.freedom))
    within = (known.means @ whiten).var(dim=0).mean()  # the clients differ in their noise alone
    claimed = (1.0 / s.weights - known.counts / known.counts.square() * _clear_share(known, whiten)).mean()
    assert float(within) == pytest.approx(float(claimed), rel=0.3)


def _clear_share(known: Any, whiten: Tensor) -> float:
    """The part of whitened variance that samples have, the rest being noise."""
    noise = float((known.blur.unsqueeze(1) / known.counts).mean()) * float(whiten.square().sum(dim=0).mean())
    return 1.0 - noise


def test_the_noise_of_an_epsilon() -> None:
    """Balle and Wang's exact Gaussian mechanism; the classical one would have 4.84 at epsilon 1."""
    assert multiplier(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-3)
    assert multiplier(10.0, 1e-5) < multiplier(3.0, 1e-5) < multiplier(1.0, 1e-5)


def test_a_client_notices_that_its_data_changed() -> None:
    x, y = images(20), torch.arange(20) % 3
    me = client(x, y)
    said(me)
    for other, expected in ((x, 0.0), (x.flip(0), None), (x + images(20, 3), 1.0)):
        again = client(other, y)
        again.state = me.kept
        if expected is not None:
            assert float(changed(again)) == expected
    shuffled = client(x.flip(0), y.flip(0))
    shuffled.state = me.kept
    assert float(changed(shuffled)) == 0.0 and float(changed(client(x, y))) == 0.0
    renamed = client(x, (y + 1) % 3)
    renamed.state = me.kept
    assert float(changed(renamed)) == 1.0


def test_real_targets_fall_into_equally_likely_bins() -> None:
    y = keys.normal(keys.key(0), 4000)
    assert bins(torch.tensor([2, 0]), 3).tolist() == [2, 0]
    assert torch.allclose(bins(y, 4).bincount().double(), torch.full((4,), 1000.0).double(), atol=100)


def test_inputs_fit_the_group_they_came_from_whatever_their_classes() -> None:
    mu = 3.0 * keys.normal(keys.key(0), 2, 3, 4)
    shares = torch.full((2, 3), 1 / 3)
    for g in (0, 1):
        z = mu[g, torch.tensor([0, 0, 0, 0, 0, 1])] + keys.normal(keys.key(g + 1), 6, 4)
        padded = torch.cat([z, 100 * torch.ones(2, 4)])
        loss = misfits(z, None, mu, shares)
        assert int(loss.argmin()) == g
        assert torch.allclose(misfits(padded, torch.tensor([1.0] * 6 + [0.0] * 2), mu, shares), loss)


def test_less_noise_does_not_hide_more() -> None:
    """Noise on the scatter makes narrow directions negative; taken for narrow they would outweigh all others."""
    x, y = images(60), torch.arange(60) % 2
    got = [said(client(x, y, 2, seed), dims=16, noise=0.3) for seed in range(4)]
    known = read({n: torch.stack([r[n] for r in got]) for n in got[0]}, Describe(16, noise=0.3))
    narrow = known.scatter - 2.0 * known.scatter.diagonal().mean() * torch.eye(16)
    _, whiten = summaries(known.counts, known.means, known.blur, narrow, float(known.freedom))
    assert float(whiten.abs().max()) < 1e3
