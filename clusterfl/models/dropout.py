"""Dropout whose masks come from keys: the same in every engine and after any restart.

Every dropout layer of PyTorch is replaced. What else draws in a model's forward pass (``F.dropout``, ``torch.rand``)
draws from the global generator, which no key reaches: such a model is refused when it is first called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.keys import Key

_step_key: ContextVar[Key | None] = ContextVar("dropout_key", default=None)


CHANNELS = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3, nn.FeatureAlphaDropout: 3}  # axes that go together
ALPHA = -1.7580993408473766  # SELU's value far below zero, at which alpha dropout puts what it drops


class KeyedDropout(nn.Module):
    """Dropout whose mask comes from the step's key; it takes the place of every dropout layer.

    ``axes``: so many last axes of the input are dropped together, as whole channels. ``alpha``: what is dropped goes to
    ``ALPHA`` and the rest is stretched so that mean and variance stay (Klambauer et al., 2017).
    """

    def __init__(self, p: float, place: int, axes: int = 0, *, alpha: bool = False) -> None:
        super().__init__()
        self.p, self.place, self.axes, self.alpha = p, place, axes, alpha

    def forward(self, x: Tensor) -> Tensor:
        key = _step_key.get()
        if not self.training or self.p == 0.0 or key is None:
            return x
        axes = max(0, min(self.axes, x.dim() - 2))
        shape = [*x.shape[: x.dim() - axes], *[1] * axes]
        keep = keys.uniform(keys.fold_in(key, "dropout", self.place), *shape) >= self.p
        if not self.alpha:
            return x * keep / (1.0 - self.p) if self.p < 1.0 else x * 0.0
        stretch = ((1.0 - self.p) * (1.0 + self.p * ALPHA**2)) ** -0.5 if self.p < 1.0 else 0.0
        return stretch * (torch.where(keep, x, ALPHA) - self.p * ALPHA)


def key_dropouts(module: nn.Module) -> bool:
    """Replaces the module's dropouts by keyed ones; whether it has any."""
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.modules.dropout._DropoutNd)
    ]
    for place, (parent, name, child) in enumerate(found):
        alpha = isinstance(child, nn.AlphaDropout | nn.FeatureAlphaDropout)
        setattr(parent, name, KeyedDropout(child.p, place, CHANNELS.get(type(child), 0), alpha=alpha))
    return bool(found)


class GlobalDraws(ValueError):
    """A model draws where no key reaches."""


@contextmanager
def drawing_nothing(module: nn.Module) -> Iterator[None]:
    """Refuses a model that draws from the global generator meanwhile: two runs of one seed would differ."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise GlobalDraws(
            f"model={type(module).__name__} should draw nothing from the global random generator in its forward pass; "
            "write F.dropout, torch.rand and dropout arguments of layers as nn.Dropout layers"
        )


@contextmanager
def dropping(key: Key) -> Iterator[None]:
    """Within it dropout draws from ``key``; outside of it nothing is dropped."""
    token = _step_key.set(key)
    try:
        yield
    finally:
        _step_key.reset(token)
