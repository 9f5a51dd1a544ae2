"""What the models share: the encoder-and-head shape, named layers, and checks of sizes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from clusterfl.errors import ConfigError


class Classifier(nn.Module):
    """``head(encoder(x))``: the head is the last linear layer, the encoder all before it.

    FedPer, FCCA and IFCA's weight sharing split a model by these two names.
    """

    def __init__(self, encoder: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


class HeLinear(nn.Linear):
    """A linear layer before a ReLU, in a stack of them: its weights start ``gain`` times as large as torch's.

    That is He et al.'s (2015) start, which keeps the signal's size through any depth. From torch's own an
    11-layer perceptron is still at chance after 1,000 steps of SGD.
    """

    gain = math.sqrt(6.0)  # torch draws from U(-1, 1) / sqrt(fan_in), a sixth of He's variance

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight.mul_(self.gain)


def widened(model: Classifier, gain: float) -> Classifier:
    """The model with weights, not biases, that start ``gain`` times as large, here and whenever they are drawn anew."""
    if gain <= 0:
        raise ConfigError(f"gain={gain} should be above 0")
    for layer in model.modules():
        if gain != 1.0 and isinstance(layer, nn.Linear | nn.Conv2d):
            layer.gain = gain  # type: ignore[assignment]  # models/fresh.py reads it
            with torch.no_grad():
                layer.weight.mul_(gain)
    return model


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in order, so that a parameter is ``encoder.conv1.weight`` and not ``encoder.0.weight``."""
    return nn.Sequential(OrderedDict(layers))


Dense = tuple[tuple[str, str | None], ...]  # the names of each layer's weight and bias


def dense(module: nn.Module) -> Dense | None:
    """The layers of a perceptron, linear ones with ReLUs between them; None for any other model."""
    steps = list(_steps("", module))
    if steps and type(steps[0][1]) is nn.Flatten:
        steps = steps[1:]
    linear, between = [m for _, m in steps[::2]], [m for _, m in steps[1::2]]
    if len(linear) == len(between) or any(m._forward_hooks or m._forward_pre_hooks for _, m in steps):
        return None
    if any(type(m) not in (nn.Linear, HeLinear) for m in linear) or any(type(m) is not nn.ReLU for m in between):
        return None
    prefixes = [f"{name}." if name else "" for name, _ in steps[::2]]
    return tuple((f"{p}weight", None if m.bias is None else f"{p}bias") for p, m in zip(prefixes, linear, strict=True))


def _steps(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences, in the order in which they are applied."""
    if type(module) not in (nn.Sequential, Classifier):
        yield name, module
        return
    for child, inner in module.named_children():
        yield from _steps(f"{name}.{child}" if name else child, inner)


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A 'same' convolution and its batch norm, whose shift makes the convolution's bias redundant."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return named(conv=conv, bn=nn.BatchNorm2d(outputs))


def scaled(size: int, width: float) -> int:
    """A layer's size in a net ``width`` times as wide."""
    if not width > 0:
        raise ConfigError(f"width={width} should be above 0")
    return max(1, round(size * width))


def image(input_shape: tuple[int, ...], at_least: int = 1) -> tuple[int, int, int]:
    """``(channels, height, width)``, or an error that says what a convolution needs."""
    if len(input_shape) != 3:
        raise ConfigError(f"input_shape={input_shape} should be (channels, height, width)")
    channels, height, width = input_shape
    if min(height, width) < at_least:
        raise ConfigError(f"input_shape={input_shape} should be at least {at_least}x{at_least} pixels")
    return channels, height, width
