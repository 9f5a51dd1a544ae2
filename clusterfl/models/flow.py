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
        for block in range(self.blocks):
            _undo(self.dim, block)  # and its inverse: a tensor made inside ``grad`` must not be cached

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
        u, trace = self._trace(theta, z, onehot)
        return u, torch.stack([move.by.s.sum(-1) for move in trace]).sum(0)

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
        u, trace = self._trace(theta, z, onehot)
        w = (w / self.dim if per_dim else w).unsqueeze(-1)
        g = w * u
        found: Tree = {}
        for block in reversed(range(self.blocks)):
            ga, gb = self._halves(g)
            gb, more = self._back(theta, f"block{block}.b", trace.pop(), gb, w, found)
            ga, less = self._back(theta, f"block{block}.a", trace.pop(), ga + more, w, found)
            g = _reorder(torch.cat([ga, gb + less], dim=-1), _undo(self.dim, block))
        return {name: found[name] for name in theta}

    def _trace(self, theta: Tree, z: Tensor, onehot: Tensor) -> tuple[Tensor, list[_Move]]:
        """``u``, and every move on the way to it."""
        trace = []
        for block in range(self.blocks):
            a, b = self._halves(_reorder(z, _permutation(self.dim, block)))
            move = self._move(theta, f"block{block}.a", a, b, onehot)
            a = move.scaled + move.by.t
            trace.append(move)
            move = self._move(theta, f"block{block}.b", b, a, onehot)
            b = move.scaled + move.by.t
            trace.append(move)
            z = torch.cat([a, b], dim=-1)
        return z, trace

    def _move(self, theta: Tree, name: str, half: Tensor, other: Tensor, onehot: Tensor) -> _Move:
        by = self._coupling(theta, name, other, onehot)
        scale = by.s.exp()
        return _Move(by, scale, half * scale)

    def _back(self, theta: Tree, name: str, move: _Move, g: Tensor, w: Tensor, found: Tree) -> tuple[Tensor, Tensor]:
        """From the gradient of a half that was moved, that of the half before and of the other half; the
        gradients of the parameters go into ``found``."""
        by = move.by
        flat = (by.raw * (1 / self.clamp)).square() + 1  # atan'(r) = 1 / (r^2 + 1)
        out = torch.cat([(g * move.scaled - w) * (2 / math.pi) / flat, g], dim=-1)
        hidden = (out @ theta[f"{name}.w2"]) * (by.h > 0)
        found |= {f"{name}.w1": hidden.mT @ by.x, f"{name}.b1": hidden.sum(-2)}
        found |= {f"{name}.w2": out.mT @ by.h, f"{name}.b2": out.sum(-2)}
        return g * move.scale, hidden @ theta[f"{name}.w1"][:, : -self.classes]

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., : self.dim // 2], x[..., self.dim // 2 :]

    def _coupling(self, theta: Tree, name: str, x: Tensor, onehot: Tensor) -> _Coupling:
        """Log-scale, softly clamped, and shift for the other half."""
        x = torch.cat([x, onehot], dim=-1)
        h = F.linear(x, theta[f"{name}.w1"], theta[f"{name}.b1"]).relu()
        raw, t = F.linear(h, theta[f"{name}.w2"], theta[f"{name}.b2"]).chunk(2, dim=-1)
        return _Coupling(x, h, raw, self.clamp * (2 / math.pi) * torch.atan(raw / self.clamp), t)


class _Coupling(NamedTuple):
    """What one half and the label say of the other half, and how they came to it."""

    x: Tensor  # the half and the label
    h: Tensor  # the hidden layer
    raw: Tensor  # the log-scale before its clamp
    s: Tensor  # the log-scale
    t: Tensor  # the shift


class _Move(NamedTuple):
    by: _Coupling
    scale: Tensor
    scaled: Tensor  # the half, times the scale; plus the shift it is what comes out


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(-1, order.to(x.device))


@lru_cache
def _permutation(dim: int, block: int) -> Tensor:
    """The block's fixed order of features, by a hash, so that it needs neither a generator nor the same numpy on
    every client."""
    return torch.tensor(sorted(range(dim), key=lambda i: sha256(f"{block}/{i}".encode()).digest()))


@lru_cache
def _undo(dim: int, block: int) -> Tensor:
    return _permutation(dim, block).argsort()
