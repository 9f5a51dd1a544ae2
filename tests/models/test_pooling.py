"""A convolution with its pooling equals torch's two layers, whichever gradient is wanted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl.models.pooling import PooledConv2d

SHAPES = [(1, 28, 0), (3, 32, 2), (2, 9, 1), (1, 8, 2)]


def made(channels: int, side: int, padding: int) -> tuple[PooledConv2d, Tensor]:
    torch.manual_seed(0)
    return PooledConv2d(channels, 6, 5, padding=padding), torch.randn(4, channels, side, side)


def two_layers(layer: PooledConv2d, x: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x, layer.weight, layer.bias, padding=layer.padding), 2)


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize(("channels", "side", "padding"), SHAPES)
def test_pooled_conv_is_conv_then_pool(gradient: bool, channels: int, side: int, padding: int) -> None:
    layer, x = made(channels, side, padding)
    expected = two_layers(layer, x)
    with torch.set_grad_enabled(gradient):
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(layer(given), expected)
        call = torch.func.vmap(lambda w: torch.func.functional_call(layer, {"weight": w, "bias": layer.bias}, (x,)))
        torch.testing.assert_close(call(torch.stack([layer.weight, 2 * layer.weight]))[0], expected)


@pytest.mark.parametrize(("channels", "side", "padding"), SHAPES)
def test_the_inputs_gradient(channels: int, side: int, padding: int) -> None:
    layer, x = made(channels, side, padding)
    layer.requires_grad_(False)
    x.requires_grad_()
    up = torch.randn_like(two_layers(layer, x))
    (expected,) = torch.autograd.grad(two_layers(layer, x), x, up)
    torch.testing.assert_close(layer(x), two_layers(layer, x))
    (got,) = torch.autograd.grad(layer(x), x, up)
    torch.testing.assert_close(got, expected)
    functional = torch.func.vmap(torch.func.grad(lambda x: (layer(x) * up).sum()))(torch.stack([x.detach()] * 2))
    torch.testing.assert_close(functional[1], expected)


def test_training_takes_torchs_own_pooling(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = made(1, 28, 0)
    calls: list[int] = []
    real = F.max_pool2d
    monkeypatch.setattr(F, "max_pool2d", lambda *args: calls.append(1) or real(*args))
    layer(x)
    torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w, "bias": layer.bias}, (x,)).sum())(
        layer.weight.detach()
    )
    assert len(calls) == 2
    with torch.no_grad():
        layer(x)
    assert len(calls) == 2
