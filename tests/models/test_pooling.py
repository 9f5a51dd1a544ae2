"""A convolution with its pooling equals torch's two layers, in training and in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from clusterfl.models.pooling import PooledConv2d


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize(("channels", "side", "padding"), [(1, 28, 0), (3, 32, 2), (2, 9, 1), (1, 8, 2)])
def test_pooled_conv_is_conv_then_pool(gradient: bool, channels: int, side: int, padding: int) -> None:
    torch.manual_seed(0)
    layer = PooledConv2d(channels, 6, 5, padding=padding)
    x = torch.randn(4, channels, side, side)
    expected = F.max_pool2d(F.conv2d(x, layer.weight, layer.bias, padding=padding), 2)
    with torch.set_grad_enabled(gradient):
        check(layer, x, expected)


def check(layer: PooledConv2d, x: torch.Tensor, expected: torch.Tensor) -> None:
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        got = layer(given)
        torch.testing.assert_close(got, expected)
    together = torch.func.vmap(lambda w: torch.func.functional_call(layer, {"weight": w, "bias": layer.bias}, (x,)))
    many = together(torch.stack([layer.weight, 2 * layer.weight]))
    torch.testing.assert_close(many[0], expected)
