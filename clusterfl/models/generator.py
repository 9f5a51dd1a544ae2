"""MD-ICFL's conditional generator of pseudo samples (its eq. 7): noise and a label in, an image out.

Pure functions over a tree, so that the generators of all clusters run as one under ``vmap``.
Shapes: noise [B, noise]; onehot [B, C]; images [B, *shape].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterfl.errors import ConfigError
from clusterfl.keys import Key, fold_in, normal
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Generator:
    """Two dense layers with batch norm and ReLU between them (the paper gives no hidden size).

    Batch norm always uses the batch's own statistics, in sampling too. A generator lives for one round and
    is sampled once, from the labels and noise it was trained on, so running averages would add state
    and a mismatch and gain nothing. So draw all classes in one batch, as ``sample`` does: a batch of one
    class is normalised unlike any that the generator has seen.
    """

    shape: tuple[int, ...]
    classes: int
    noise: int = 16
    hidden: int = 256

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise ConfigError(f"shape={self.shape} should be whole numbers above 0")
        for name in ("classes", "noise", "hidden"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} should be at least 1")

    def init(self, key: Key) -> Tree:
        """Fresh parameters. The first layer has no bias: the batch norm's shift is one."""
        # only one label input is ever on, so the fan-in is noise + 1
        w1 = normal(fold_in(key, 1), self.hidden, self.noise + self.classes) / math.sqrt(self.noise + 1)
        w2 = normal(fold_in(key, 2), math.prod(self.shape), self.hidden) / math.sqrt(self.hidden)
        # zeros_like, not zeros: under vmap over keys each generator must own its vectors
        zero1, zero2 = torch.zeros_like(w1[:, 0]), torch.zeros_like(w2[:, 0])
        return {"w1": w1, "scale": zero1 + 1, "shift": zero1, "w2": w2, "b2": zero2}

    def forward(self, theta: Tree, noise: Tensor, onehot: Tensor) -> Tensor:
        """One image for each row; rows are normalised together, so draw them as one batch."""
        h = F.linear(torch.cat([noise, onehot], dim=-1), theta["w1"])
        h = F.batch_norm(h, None, None, theta["scale"], theta["shift"], training=True)  # the batch's own moments
        return F.linear(h.relu(), theta["w2"], theta["b2"]).reshape(-1, *self.shape)

    def sample(self, theta: Tree, key: Key, per_class: int) -> Tensor:
        """``per_class`` images of every class ``[C, per_class, *shape]``."""
        noise = normal(key, self.classes * per_class, self.noise)
        onehot = torch.eye(self.classes, device=noise.device).repeat_interleave(per_class, dim=0)
        return self.forward(theta, noise, onehot).reshape(self.classes, per_class, *self.shape)
