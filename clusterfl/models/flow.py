"""A conditional normalising flow for FCCA: affine couplings (RealNVP, Dinh et al., 2017; GLOW, Kingma &
Dhariwal, 2018) whose scales and shifts also see the label.

Pure functions over a tree, so that the flows of all clients run as one under ``vmap``.
Shapes: z, u [..., d]; onehot [..., C]; logdet [...].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterfl.errors import ConfigError
from clusterfl.keys import Key, fold_in, normal
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Flow:
    """Maps a feature ``z`` of a known label to ``u ~ N(0, I)``, and back.

    The parameters of a flow are a tree of its own; permutations are not in it, being the same everywhere.
    """

    dim: int
    classes: int
    blocks: int = 4
    hidden: int = 64
    clamp: float = 2.0  # a coupling's log-scale stays within (-clamp, clamp)

    def __post_init__(self) -> None:
        for name, least in (("dim", 2), ("classes", 1), ("blocks", 1), ("hidden", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value} should be at least {least}")
        if not self.clamp > 0:
            raise ConfigError(f"clamp={self.clamp} should be above 0")

    def init(self, key: Key) -> Tree:
        """A fresh flow, close to a permutation: the last layers of scale and shift are small."""
        a, b = self.dim // 2, self.dim - self.dim // 2
        theta: Tree = {}
        for block in range(self.blocks):
            for half, seen, moved in (("a", b, a), ("b", a, b)):
                name, k = f"block{block}.{half}", fold_in(key, block, half)
                # only one label input is ever on, so the fan-in is seen + 1
                w1 = normal(fold_in(k, 1), self.hidden, seen + self.classes) * math.sqrt(2 / (seen + 1))
                w2 = normal(fold_in(k, 2), 2 * moved, self.hidden) * 0.01
                # zeros_like, not zeros: under vmap over keys each flow must own its biases
                theta |= {f"{name}.w1": w1, f"{name}.b1": torch.zeros_like(w1[:, 0])}
                theta |= {f"{name}.w2": w2, f"{name}.b2": torch.zeros_like(w2[:, 0])}
        return theta

    def forward(self, theta: Tree, z: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
        """``u`` and ``log |det du/dz|``."""
        u, logdet, _ = self._trace(theta, z, onehot)
        return u, logdet

    def inverse(self, theta: Tree, u: Tensor, onehot: Tensor) -> Tensor:
        """The ``z`` with ``forward(z) = u``."""
        for block in reversed(range(self.blocks)):
            a, b = self._halves(u)
            seen = self._coupling(theta, f"block{block}.b", a, onehot)
            b = (b - seen.t) * (-seen.s).exp()
            seen = self._coupling(theta, f"block{block}.a", b, onehot)
            a = (a - seen.t) * (-seen.s).exp()
            u = _reorder(torch.cat([a, b], dim=-1), _undo(self.dim, block))
        return u

    def nll(self, theta: Tree, z: Tensor, onehot: Tensor, w: Tensor | None = None, *, per_dim: bool = True) -> Tensor:
        """The ``w``-weighted mean of ``-log p(z | label)`` in nats; 0 where all weights are 0.

        ``per_dim`` divides by the dimension, without which FCCA's step sizes diverge on wide features.
        """
        u, logdet = self.forward(theta, z, onehot)
        each = 0.5 * u.square().sum(-1) - logdet + 0.5 * self.dim * math.log(2 * math.pi)
        if per_dim:
            each = each / self.dim
        if w is None:
            return each.mean()
        return (w * each).sum() / w.sum().clamp_min(torch.finfo(each.dtype).tiny)

    def gradient(self, theta: Tree, z: Tensor, onehot: Tensor, w: Tensor, *, per_dim: bool = True) -> Tree:
        """Of the ``w``-weighted *sum* of ``-log p(z | label)``, for ``z`` [n, d].

        By hand: recording and replaying nets this small costs autograd more than their arithmetic.
        """
        u, _, trace = self._trace(theta, z, onehot)
        w = (w / self.dim if per_dim else w).unsqueeze(-1)
        g = w * u
        found: Tree = {}
        for block in reversed(range(self.blocks)):
            ga, gb = self._halves(g)
            gb, more = self._back(theta, f"block{block}.b", *trace.pop(), gb, w, found)
            ga, less = self._back(theta, f"block{block}.a", *trace.pop(), ga + more, w, found)
            g = _reorder(torch.cat([ga, gb + less], dim=-1), _undo(self.dim, block))
        return {name: found[name] for name in theta}

    def _trace(self, theta: Tree, z: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor, list[tuple[_Coupling, Tensor]]]:
        """As :meth:`forward`, and every coupling with the half that it has scaled."""
        logdet = torch.zeros_like(z[..., 0])
        trace = []
        for block in range(self.blocks):
            a, b = self._halves(_reorder(z, _permutation(self.dim, block)))
            seen = self._coupling(theta, f"block{block}.a", b, onehot)
            scaled = a * seen.s.exp()
            trace.append((seen, scaled))
            a, logdet = scaled + seen.t, logdet + seen.s.sum(-1)
            seen = self._coupling(theta, f"block{block}.b", a, onehot)
            scaled = b * seen.s.exp()
            trace.append((seen, scaled))
            b, logdet = scaled + seen.t, logdet + seen.s.sum(-1)
            z = torch.cat([a, b], dim=-1)
        return z, logdet, trace

    def _back(
        self, theta: Tree, name: str, seen: _Coupling, scaled: Tensor, g: Tensor, w: Tensor, found: Tree
    ) -> tuple[Tensor, Tensor]:
        """From the gradient of a coupling's outcome, that of the half it moved and of the half it looked at;
        its parameters' gradients go into ``found``."""
        raw = (g * scaled - w) * (2 / math.pi) / (1 + (seen.raw / self.clamp).square())
        out = torch.cat([raw, g], dim=-1)
        hidden = (out @ theta[f"{name}.w2"]) * (seen.h > 0)
        found |= {f"{name}.w1": hidden.mT @ seen.x, f"{name}.b1": hidden.sum(-2)}
        found |= {f"{name}.w2": out.mT @ seen.h, f"{name}.b2": out.sum(-2)}
        return g * seen.s.exp(), hidden @ theta[f"{name}.w1"][:, : -self.classes]

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., : self.dim // 2], x[..., self.dim // 2 :]

    def _coupling(self, theta: Tree, name: str, x: Tensor, onehot: Tensor) -> _Coupling:
        """Log-scale, softly clamped, and shift for the other half."""
        x = torch.cat([x, onehot], dim=-1)
        h = F.linear(x, theta[f"{name}.w1"], theta[f"{name}.b1"]).relu()
        raw, t = F.linear(h, theta[f"{name}.w2"], theta[f"{name}.b2"]).chunk(2, dim=-1)
        return _Coupling(x, h, raw, self.clamp * (2 / math.pi) * torch.atan(raw / self.clamp), t)


class _Coupling(NamedTuple):
    x: Tensor  # the half that is left as it is, and the label
    h: Tensor  # the hidden layer
    raw: Tensor  # the log-scale before its clamp
    s: Tensor  # the log-scale
    t: Tensor  # the shift


def _reorder(x: Tensor, order: list[int]) -> Tensor:
    return x.index_select(-1, torch.tensor(order, device=x.device))


@lru_cache
def _permutation(dim: int, block: int) -> list[int]:
    """The block's fixed order of features.

    By a hash, so that it needs neither a generator nor the same numpy on every client; and plain integers,
    because a tensor made inside ``grad`` must not be cached.
    """
    return sorted(range(dim), key=lambda i: sha256(f"{block}/{i}".encode()).digest())


@lru_cache
def _undo(dim: int, block: int) -> list[int]:
    order = _permutation(dim, block)
    return sorted(range(dim), key=order.__getitem__)
