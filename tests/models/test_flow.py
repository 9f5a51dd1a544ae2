"""The conditional flow: exact inverse, exact log-determinant, stacked like a loop, and it learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from clusterfl import keys
from clusterfl.errors import ConfigError
from clusterfl.models import Flow
from clusterfl.models.flow import _permutation, _undo
from clusterfl.tree import Tree, nbytes, row

KEY = keys.key(7)


def trained_looking(flow: Flow, key: Tensor = KEY) -> Tree:
    """A flow far from its nearly linear start, so that tests see scales and labels at work."""
    return {name: t + 0.05 * keys.normal(keys.fold_in(key, name), *t.shape) for name, t in flow.init(key).items()}


def data(flow: Flow, n: int) -> tuple[Tensor, Tensor]:
    labels = keys.randint(keys.fold_in(KEY, "y"), flow.classes, n)
    return keys.normal(keys.fold_in(KEY, "z"), n, flow.dim), torch.eye(flow.classes)[labels]


@pytest.mark.parametrize("dim", [2, 5, 64])
def test_inverse_is_exact(dim: int) -> None:
    flow = Flow(dim, 10)
    theta = trained_looking(flow)
    z, onehot = data(flow, 50)
    u, _ = flow.forward(theta, z, onehot)
    assert (u - z).abs().max() > 0.1
    torch.testing.assert_close(flow.inverse(theta, u, onehot), z, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dim", [2, 5, 8])
def test_logdet_is_the_jacobians(dim: int) -> None:
    flow = Flow(dim, 3, hidden=16)
    theta = {name: t.double() for name, t in trained_looking(flow).items()}
    z, onehot = (t.double() for t in data(flow, 3))
    _, logdet = flow.forward(theta, z, onehot)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda x, i=i: flow.forward(theta, x, onehot[i])[0], z[i])
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, logdet[i], rtol=1e-6, atol=1e-8)
    assert logdet.abs().max() > 0.05


def test_stacked_equals_a_loop() -> None:
    flow, clients = Flow(6, 4, hidden=16), 3
    each = keys.split(KEY, clients)
    thetas = vmap(flow.init)(each)
    assert all(t.is_contiguous() for t in thetas.values())
    z, onehot = data(flow, clients * 5)
    z, onehot = z.reshape(clients, 5, -1), onehot.reshape(clients, 5, -1)
    u, logdet = vmap(flow.forward)(thetas, z, onehot)
    back = vmap(flow.inverse)(thetas, u, onehot)
    gradient, value = vmap(grad_and_value(flow.nll))(thetas, z, onehot)
    for i in range(clients):
        theta = flow.init(each[i])
        for name, t in theta.items():
            assert torch.equal(thetas[name][i], t)
        one_u, one_logdet = flow.forward(theta, z[i], onehot[i])
        torch.testing.assert_close(u[i], one_u)
        torch.testing.assert_close(logdet[i], one_logdet)
        torch.testing.assert_close(back[i], z[i], rtol=0, atol=1e-5)
        one_gradient, one_value = grad_and_value(flow.nll)(theta, z[i], onehot[i])
        torch.testing.assert_close(value[i], one_value)
        torch.testing.assert_close(row(gradient, i), one_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("per_dim", [True, False])
@pytest.mark.parametrize("dim", [2, 5, 16])
def test_gradient_is_autograds(dim: int, per_dim: bool) -> None:
    flow = Flow(dim, 3, blocks=3, hidden=8, clamp=0.7)
    theta = {name: t.double() for name, t in trained_looking(flow).items()}
    z, onehot = (t.double() for t in data(flow, 9))
    w = keys.uniform(KEY, 9).double()
    want, _ = grad_and_value(lambda t: flow.nll(t, z, onehot, w, per_dim=per_dim) * w.sum())(theta)
    got = flow.gradient(theta, z, onehot, w, per_dim=per_dim)
    assert list(got) == list(theta)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    stacked = vmap(lambda w: flow.gradient(theta, z, onehot, w, per_dim=per_dim))(torch.stack([w, 2 * w]))
    torch.testing.assert_close(row(stacked, 1), {n: 2 * t for n, t in want.items()}, rtol=1e-9, atol=1e-12)


def test_gradient_reaches_every_parameter() -> None:
    flow = Flow(6, 3, hidden=16)
    z, onehot = data(flow, 64)
    gradient, _ = grad_and_value(flow.nll)(flow.init(KEY), z, onehot)
    assert all(bool((g != 0).any()) and bool(torch.isfinite(g).all()) for g in gradient.values())


def test_the_label_matters() -> None:
    flow = Flow(4, 2)
    theta = trained_looking(flow)
    z, _ = data(flow, 8)
    first, second = torch.eye(2)[:, None].expand(2, 8, 2)
    assert (flow.forward(theta, z, first)[0] - flow.forward(theta, z, second)[0]).abs().min() > 1e-4
    assert not torch.allclose(flow.inverse(theta, z, first), flow.inverse(theta, z, second))


def test_learns_a_mixture_better_than_a_gaussian() -> None:
    flow = Flow(2, 1, hidden=32)
    side = keys.randint(keys.fold_in(KEY, "side"), 2, 512).float() * 2 - 1
    z = 0.3 * keys.normal(keys.fold_in(KEY, "noise"), 512, 2) + side[:, None]
    onehot = torch.ones(512, 1)
    gaussian = torch.distributions.MultivariateNormal(z.mean(0), z.T.cov())
    theta = {name: t.requires_grad_() for name, t in flow.init(KEY).items()}
    optimiser = torch.optim.Adam(theta.values(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        flow.nll(theta, z, onehot).backward()
        optimiser.step()
    nll = flow.nll(theta, z, onehot, per_dim=False).item()
    assert nll < -gaussian.log_prob(z).mean().item() - 0.2


def test_nll_weights_and_scale() -> None:
    flow = Flow(4, 2, hidden=8)
    theta = trained_looking(flow)
    z, onehot = data(flow, 6)
    w = torch.tensor([1.0, 1, 1, 0, 0, 0])
    torch.testing.assert_close(flow.nll(theta, z, onehot, w), flow.nll(theta, z[:3], onehot[:3]))
    torch.testing.assert_close(flow.nll(theta, z, onehot, per_dim=False), 4 * flow.nll(theta, z, onehot))
    gradient, value = grad_and_value(flow.nll)(theta, z, onehot, torch.zeros(6))
    assert value == 0
    assert all(bool((g == 0).all()) for g in gradient.values())
    # a flow that changes nothing is the standard normal
    still = {name: torch.zeros_like(t) for name, t in theta.items()}
    normal = 0.5 * math.log(2 * math.pi) + 0.5 * z.square().mean()
    torch.testing.assert_close(flow.nll(still, z, onehot), normal)


def test_log_scales_are_clamped() -> None:
    flow = Flow(4, 2, blocks=2, clamp=0.5)
    theta = {name: 1e3 * t for name, t in trained_looking(flow).items()}
    z, onehot = data(flow, 16)
    _, logdet = flow.forward(theta, 1e3 * z, onehot)
    assert logdet.abs().max() <= flow.blocks * flow.dim * flow.clamp


def test_permutations_are_fixed_forever() -> None:
    assert [_permutation(6, block).tolist() for block in range(2)] == [[4, 0, 2, 1, 5, 3], [3, 0, 1, 5, 2, 4]]
    order = _permutation(64, 3)
    assert sorted(order.tolist()) == list(range(64))
    assert order[_undo(64, 3)].tolist() == list(range(64))


def test_all_its_tensors_can_be_trained_and_averaged() -> None:
    """Permutations are no part of the model, so nothing in it is an integer or has no gradient."""
    assert {t.dtype for t in Flow(6, 3).init(KEY).values()} == {torch.float32}


def test_size() -> None:
    assert nbytes(Flow(64, 10).init(KEY)) == 4 * 55_296


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"dim": 1, "classes": 2}, "dim=1 should be at least 2"),
        ({"dim": 4, "classes": 2, "blocks": 0}, "blocks=0 should be at least 1"),
        ({"dim": 4, "classes": 2, "clamp": 0.0}, "clamp=0.0 should be above 0"),
    ],
)
def test_errors(params: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Flow(**params)  # type: ignore[arg-type]
