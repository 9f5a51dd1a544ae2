"""Local training that hides each sample of its client: DP-SGD (Abadi et al., 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Batch, Client
from clusterfl.message import Declaration, Model, Payload
from clusterfl.parts.local import SGD, Gradient, gradient
from clusterfl.tree import Tree, select


@dataclass(frozen=True)
class PrivateSGD(SGD):
    """The rule of a client that hides each of its samples: every sample's gradient is cut to length ``sample_clip``,
    and the batch's sum gets Gaussian noise of ``sample_clip * sample_noise``."""

    sample_clip: float = 1.0
    sample_noise: float = 1.0
    counted: tuple[int | None, int | None] = (None, None)  # epochs and steps, as they are accounted

    @staticmethod
    def of(rule: SGD, clip: float, noise: float) -> PrivateSGD:
        given = {f.name: getattr(rule, f.name) for f in fields(SGD)}
        return PrivateSGD(**given, sample_clip=clip, sample_noise=noise, counted=(rule.epochs, rule.steps))

    def epochs_of(self, n: int) -> int:
        """How often a client with ``n`` samples reads each of them, at most."""
        return self.epochs if self.epochs is not None else -(-(self.steps or 0) // max(1, -(-n // self.batch)))

    def under(self, me: Client, grad: Gradient) -> Client:
        """Raises where the client reads its samples more often than is accounted."""
        plain = grad is gradient or getattr(grad, "__reads_once__", False)
        if not plain or me.trained or (self.epochs, self.steps) != self.counted:
            raise ValueError(
                "privacy.unit='sample' should be 'client' for this method: it reads samples more often than its rule "
                "says"
            )
        me.trained.append(True)
        return replace(me, rule=self)

    def gradient(self, me: Client, theta: Tree, batch: Batch) -> Tree:
        """The mean of the batch's gradients, each cut by itself, with noise on their sum."""
        task = me.task
        params = select(theta, task.params)

        def loss(params: Tree, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
            return task.loss({**theta, **params}, x.unsqueeze(0), y.unsqueeze(0), key=key if task.drops else None)

        own = keys.split(keys.fold_in(batch.key, "samples"), len(batch.y))
        each: Tree = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(params, batch.x, batch.y, own)
        squares = torch.stack([g.flatten(1).square().sum(dim=1) for g in each.values()]).sum(dim=0)
        scale = (self.sample_clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
        if batch.w is not None:
            scale = scale * batch.w
        n = len(batch.y) if batch.w is None else batch.w.sum().clamp(min=1.0)
        std, noise = self.sample_clip * self.sample_noise, keys.fold_in(batch.key, "sample noise")
        return {
            name: (torch.einsum("b,b...->...", scale, g) + std * keys.normal(keys.fold_in(noise, name), *g.shape[1:]))
            / n
            for name, g in each.items()
        }


def rules_of(part: Any) -> Iterator[SGD]:
    """The local rules that a method, or what it wraps, holds."""
    if isinstance(part, SGD):
        yield part
    elif is_dataclass(part) and not isinstance(part, type):
        for f in fields(part):
            yield from rules_of(getattr(part, f.name))


def check_hidden(procedures: Any, reply: Mapping[str, Payload], declared: Declaration, me: Client) -> None:
    """Under a private rule, raises where a model leaves that was not made by it."""
    models = [name for name in reply if isinstance(declared.get(name), Model)]
    if models and not me.trained and any(isinstance(rule, PrivateSGD) for rule in rules_of(procedures)):
        raise ValueError(
            f"privacy.unit='sample' should be 'client': {models[0]!r} is not made by steps of the local rule"
        )
