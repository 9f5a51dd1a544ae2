"""How a local step is made from a gradient, beside plain SGD with momentum: Adam and AdamW.

Their moments start at zero every round, as momentum does. Everything is in plain tensors that run under ``vmap`` too,
where clients of one stack may have taken different numbers of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl.fields import above, option
from clusterfl.method import Registered


@dataclass(frozen=True)
class PlainSGD(Registered):
    """Gradient steps, with momentum if the rule has some; what is used where nothing else is asked for."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Adam(Registered):
    """Kingma and Ba, 2015; weight decay is part of the gradient."""

    name: ClassVar[str] = "adam"
    decoupled: ClassVar[bool] = False

    beta1: float = option(0.9, "share of the mean gradient that stays at a step")
    beta2: float = option(0.999, "share of the mean squared gradient that stays at a step")
    eps: float = option(1e-8, "keeps the step finite where gradients are zero")

    def __post_init__(self) -> None:
        for beta in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, beta) < 1.0:
                raise ValueError(f"{beta}={getattr(self, beta)} should be at least 0 and below 1")
        above(0, self, "eps")


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter, 2019: weight decay beside the adapted gradient, not within it."""

    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True


Optimizer = PlainSGD | Adam | AdamW


@dataclass
class Moments:
    """Running means of the gradients and of their squares, in the order of the parameters, and the steps so far."""

    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    steps: int | Tensor = 0

    def direction(self, rule: Adam, grads: list[Tensor], active: Tensor | None) -> list[Tensor]:
        """Where one step goes, per unit of the rate. A batch that is not ``active`` leaves no trace."""
        if not self.first:
            self.first, self.second = [torch.zeros_like(g) for g in grads], [torch.zeros_like(g) for g in grads]
        b1, b2 = rule.beta1, rule.beta2
        first = [m * b1 + g * (1.0 - b1) for m, g in zip(self.first, grads, strict=True)]
        second = [v * b2 + g.square() * (1.0 - b2) for v, g in zip(self.second, grads, strict=True)]
        if active is not None:
            first = [torch.where(active, new, old) for new, old in zip(first, self.first, strict=True)]
            second = [torch.where(active, new, old) for new, old in zip(second, self.second, strict=True)]
            self.steps = self.steps + active.to(grads[0].dtype)
            t: int | Tensor = self.steps.clamp(min=1.0)
        else:
            t = self.steps = self.steps + 1
        self.first, self.second = first, second
        scale, root = 1.0 / (1.0 - b1**t), (1.0 - b2**t) ** 0.5
        return [m * scale / (v.sqrt() / root + rule.eps) for m, v in zip(first, second, strict=True)]
