"""What a sample's answer costs: losses of each sample ``[B]`` from the model's outputs and the targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PerSample = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["cross-entropy", "mse", "mae", "huber"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per-sample cross-entropy."""
    return F.cross_entropy(logits, y, reduction="none")


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross-entropy in which a sample counts as much as its class: the loss times the class's weight."""

    weights: tuple[float, ...]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y) * logits.new_tensor(self.weights)[y]


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over a sample's targets, however they are shaped."""
    return _each(errors(outputs, y).square())


def absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    return _each(errors(outputs, y).abs())


def huber_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared near the target, linear from a distance of 1 on."""
    off = errors(outputs, y).abs()
    return _each(torch.where(off < 1.0, 0.5 * off.square(), off - 0.5))


def errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs less targets, in the targets' shape: ``[B, 1]`` less ``[B]`` would otherwise be ``[B, B]``.

    PyTorch's own losses of numbers fail in one ``vmap`` within another, where K models meet a stack of clients.
    """
    if outputs.numel() != y.numel():
        raise ValueError(
            f"outputs={tuple(outputs.shape)} should be as many numbers as targets={tuple(y.shape)}; "
            "for a loss of your own over other outputs choose metric='loss'"
        )
    return outputs.reshape(y.shape) - y


def _each(costs: Tensor) -> Tensor:
    return costs.flatten(1).mean(dim=1) if costs.dim() > 1 else costs


REGRESSION: dict[str, PerSample] = {"mse": squared_error, "mae": absolute_error, "huber": huber_loss}
