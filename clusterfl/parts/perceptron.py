"""Perceptrons (linear layers with ReLUs between them) trained without autograd.

A layer's gradient is the product of what went in and of the error that came back, ``error.T @ input``. Written
out, a step is a dozen operations instead of seventy, and the product is added to the weights as it is made:
no gradient is ever written to memory, which is what limits a step of many small models. All of it takes one
model (``weight [out, in]``) or a stack of them (``[m, out, in]``), and the cross-entropy of classes or, with
``squared``, the mean squared error of numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from clusterfl.models.layers import Dense
from clusterfl.tree import Tree


class Factors(NamedTuple):
    """A layer, and its gradient as two factors."""

    weight: str
    bias: str | None
    given: Tensor  # [B, inputs]
    error: Tensor  # [B, outputs] the gradient of the loss by the layer's outputs


def factors(layers: Dense, theta: Tree, x: Tensor, y: Tensor, w: Tensor | None, *, squared: bool) -> list[Factors]:
    """Forward and backward through the layers: the gradient of the batch's mean loss."""
    samples = y.shape[: theta[layers[0][0]].dim() - 1]  # [B], or [m, B]
    given = [x.reshape(*samples, -1)]
    for i, (weight, bias) in enumerate(layers):
        out = given[-1] @ theta[weight].mT
        if bias is not None:
            out = out + theta[bias].unsqueeze(-2)
        given.append(out.relu() if i < len(layers) - 1 else out)
    logits = given.pop()
    share = 1.0 / samples[-1] if w is None else (w / w.sum(dim=-1, keepdim=True).clamp(min=1.0)).unsqueeze(-1)
    if squared:
        error = (logits - y.reshape(logits.shape)) * (2.0 / logits.shape[-1]) * share
    else:
        truth = y.unsqueeze(-1) == torch.arange(logits.shape[-1], device=y.device)
        error = (logits.softmax(dim=-1) - truth.to(logits.dtype)) * share
    found = []
    for (weight, bias), a in zip(reversed(layers), reversed(given), strict=True):
        found.append(Factors(weight, bias, a, error))
        if len(found) < len(layers):
            error = torch.ops.aten.threshold_backward(error @ theta[weight], a, 0)  # ReLU's
    return found


def gradient(found: list[Factors]) -> Tree:
    """The products of the factors."""
    grads: Tree = {}
    for f in found:
        grads[f.weight] = f.error.mT @ f.given
        if f.bias is not None:
            grads[f.bias] = f.error.sum(dim=-2)
    return grads


def step(
    layers: Dense,
    theta: Tree,
    names: tuple[str, ...],
    lr: float,
    x: Tensor,
    y: Tensor,
    w: Tensor | None,
    *,
    squared: bool,
) -> None:
    """One step of gradient descent on the parameters ``names``, written into ``theta``."""
    for f in factors(layers, theta, x, y, w, squared=squared):
        if f.weight in names:
            weight = theta[f.weight]
            add = weight.baddbmm_ if weight.dim() == 3 else weight.addmm_
            add(f.error.mT, f.given, alpha=-lr)
        if f.bias is not None and f.bias in names:
            theta[f.bias].sub_(f.error.sum(dim=-2), alpha=lr)


def losses(layers: Dense, centers: Tree, x: Tensor, y: Tensor, *, squared: bool) -> Tensor:
    """``[K, B]``: the loss of K models on the same samples, which the first layers read once."""
    k = centers[layers[0][0]].shape[0]
    a = x.reshape(*(y.shape[:1] if squared else y.shape), -1)
    for i, (weight, bias) in enumerate(layers):
        if i:
            a = a.relu() @ centers[weight].mT
        else:
            a = (a @ centers[weight].flatten(0, 1).mT).unflatten(-1, (k, -1)).movedim(-2, 0)
        if bias is not None:
            a = a + centers[bias].unsqueeze(-2)
    if squared:
        return (a - y.reshape(a.shape[1:])).square().mean(dim=-1)
    right = a.gather(-1, y.expand(k, *y.shape).unsqueeze(-1)).squeeze(-1)
    return a.logsumexp(dim=-1) - right


class Step(torch.autograd.Function):
    """:func:`step` within ``vmap``, which hands over the stacks as they lie in memory: without it the product
    would be made first and added then, and each operation would find its way through ``vmap`` on its own."""

    @staticmethod
    def forward(
        layers: Dense,
        names: tuple[str, ...],
        lr: float,
        squared: bool,
        every: tuple[str, ...],
        x: Tensor,
        y: Tensor,
        w: Tensor | None,
        *theta: Tensor,
    ) -> Tensor:
        step(layers, dict(zip(every, theta, strict=True)), names, lr, x, y, w, squared=squared)
        return x.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is no way back through a step."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        layers: Dense,
        names: tuple[str, ...],
        lr: float,
        squared: bool,
        every: tuple[str, ...],
        *tensors: Any,
    ) -> tuple[Tensor, None]:
        ready: list[Any] = [
            t if t is None else t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, in_dims[5:], strict=True)
        ]
        x, y, w, *theta = ready
        step(layers, dict(zip(every, theta, strict=True)), names, lr, x, y, w, squared=squared)
        return x.new_zeros(()), None
