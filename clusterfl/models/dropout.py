"""Dropout whose masks come from keys: the same in every engine and after any restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from clusterfl import keys
from clusterfl.keys import Key

_step_key: ContextVar[Key | None] = ContextVar("dropout_key", default=None)


class KeyedDropout(nn.Module):
    """Dropout whose mask comes from the step's key; it takes the place of every ``nn.Dropout``."""

    def __init__(self, p: float, place: int) -> None:
        super().__init__()
        self.p, self.place = p, place

    def forward(self, x: Tensor) -> Tensor:
        key = _step_key.get()
        if not self.training or self.p == 0.0 or key is None:
            return x
        keep = keys.uniform(keys.fold_in(key, "dropout", self.place), *x.shape) >= self.p
        return x * keep / (1.0 - self.p)


def key_dropouts(module: nn.Module) -> bool:
    """Replaces the module's dropouts by keyed ones; whether it has any."""
    found = [
        (parent, name, child.p)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Dropout)
    ]
    for place, (parent, name, p) in enumerate(found):
        setattr(parent, name, KeyedDropout(p, place))
    return bool(found)


@contextmanager
def dropping(key: Key) -> Iterator[None]:
    """Within it dropout draws from ``key``; outside of it nothing is dropped."""
    token = _step_key.set(key)
    try:
        yield
    finally:
        _step_key.reset(token)
