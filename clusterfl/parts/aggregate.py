"""Means of client models, by cluster. Sums go in client order, so that arrival order changes no bit."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.client import Fields
from clusterfl.tree import Tree, repeat, row


class MeanBy:
    """A running mean by cluster: replies go in chunk by chunk and only K models are ever held.

    ``by`` names the reply field with the cluster ids (or is a tensor over all clients, or None for one
    cluster); ``weights`` names a reply field (client sizes) or is None for a uniform mean. A cluster
    that gets nobody keeps its old centre. Integer buffers are copied from the cluster's last client.
    """

    def __init__(
        self, old: Tree, *, field: str = "theta", by: str | Tensor | None = None, weights: str | None = None
    ) -> None:
        self.old, self.field, self.by, self.weights = old, field, by, weights
        self.consumes: tuple[str, ...] = (field,)
        self.sums = {n: torch.zeros_like(t) for n, t in old.items()}
        self.mass = torch.zeros(next(iter(old.values())).shape[0])

    def add(self, ids: Tensor, fields: Fields) -> None:
        theta = fields[self.field]
        assert isinstance(theta, dict)
        s = clusters_of(self.by, ids, fields)
        w = torch.ones(len(ids)) if self.weights is None else fields[self.weights]
        assert isinstance(w, Tensor)
        self.mass.index_add_(0, s, w.to(self.mass.dtype))
        scale = w.tolist()
        for name, t in theta.items():
            sums = self.sums[name].unbind()
            # row by row: the sum stays in the processor's cache, ten times as fast as index_add_
            for i, k in enumerate(s.tolist()):
                if t.is_floating_point():
                    sums[k].add_(t[i], alpha=scale[i])
                else:
                    sums[k].copy_(t[i])

    def result(self) -> Tree:
        """The new centres."""
        alive = self.mass > 0
        out: Tree = {}
        for name, total in self.sums.items():
            shape = (-1, *([1] * (total.dim() - 1)))
            if total.is_floating_point():
                total = total / self.mass.clamp(min=torch.finfo(torch.float32).tiny).reshape(shape).to(total.dtype)
            out[name] = torch.where(alive.reshape(shape), total, self.old[name])
        return out


def clusters_of(by: str | Tensor | None, ids: Tensor, fields: Fields) -> Tensor:
    """The clusters of replies: a field of them, a tensor over all clients, or None for one cluster."""
    if by is None:
        return torch.zeros(len(ids), dtype=torch.int64)
    chosen = by[ids] if isinstance(by, Tensor) else fields[by]
    assert isinstance(chosen, Tensor)
    return chosen


def mean_by(theta: Tree, s: Tensor, *, old: Tree, weights: Tensor | None = None) -> Tree:
    """The mean of the rows of ``theta`` with ``s = k``, for every k; an empty cluster keeps ``old[k]``."""
    mean = MeanBy(old, by="s", weights=None if weights is None else "w")
    fields: Fields = {"theta": theta, "s": s}
    if weights is not None:
        fields["w"] = weights
    mean.add(torch.arange(len(s)), fields)
    return mean.result()


def mean_all(theta: Tree, *, weights: Tensor | None = None) -> Tree:
    """The mean of all rows."""
    first = repeat(row(theta, 0), 1)
    s = torch.zeros(next(iter(theta.values())).shape[0], dtype=torch.int64)
    return row(mean_by(theta, s, old=first, weights=weights), 0)
