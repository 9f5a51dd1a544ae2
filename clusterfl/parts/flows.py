"""Conditional flows of a client's features (FCCA, section 3.2): how they are trained, and what goes with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.keys import Key
from clusterfl.models.flow import Flow
from clusterfl.parts.adam import adam
from clusterfl.parts.labels import label_ratios, one_hot_labels
from clusterfl.parts.local import clipped
from clusterfl.tree import Tree, unvector, vector

CLIP = 10.0  # of the gradients that Adam sees


@dataclass(frozen=True)
class Fit:
    """How a flow is trained: ``steps`` of ``batch`` features each, and as many UNKNOWN samples of weight ``alpha``."""

    steps: int
    batch: int
    lr: float
    alpha: float
    adam: bool  # clipped; else plain SGD
    per_dim: bool  # the loss is divided by the flow's dimension


def fit(me: Client, flow: Flow, start: Tensor, z: Tensor, how: Fit) -> tuple[Tensor, Tensor]:
    """A flow of the features ``z`` after some more steps of conditional maximum likelihood (eq. 3), as a vector, and
    whether it is finite. One that is not becomes zero: the flow that knows nothing, N(0, I) for every label."""
    shard = Shard(z, me.train.y, torch.arange(me.train.length, device=z.device), me.train.n, me.train.ragged)
    batches = replace(me, train=shard).batches(size=how.batch, steps=how.steps, stream=1)
    absent = label_ratios(me) == 0
    share = how.alpha * absent.any() / how.batch  # the weight of one UNKNOWN sample
    noise = keys.split(keys.fold_in(me.key, "unknown", "z"), how.steps)
    drawn = draw_labels(absent, keys.fold_in(me.key, "unknown", "labels"), how.steps * how.batch)

    def gradient(weights: Tensor, step: int) -> Tensor:
        batch = next(batches)
        unknown = keys.normal(noise[step], how.batch, flow.dim)
        labels = drawn[step * how.batch : (step + 1) * how.batch]
        w = torch.ones_like(batch.x[:, 0]) if batch.w is None else batch.w
        w = torch.cat([w / w.sum(), share.expand(how.batch)])
        x = torch.cat([batch.x, unknown])
        onehot = F.one_hot(torch.cat([batch.y, labels]), me.task.classes).to(x.dtype)
        return vector(flow.gradient(unvector(weights, first_weights(flow)), x, onehot, w, per_dim=how.per_dim))

    def clip(weights: Tree, step: int) -> Tree:
        return {"flow": clipped([gradient(weights["flow"], step - 1)], CLIP)[0]}

    trained = start
    if how.adam:
        trained = adam(clip, {"flow": trained}, how.steps, how.lr)["flow"]
    else:
        for step in range(how.steps):
            trained = trained - how.lr * gradient(trained, step)
    whole = trained.isfinite().all()
    return torch.where(whole, trained, 0.0), whole


def draw_labels(among: Tensor, key: Key, n: int) -> Tensor:
    """``n`` labels, uniform over those that ``among`` [C] marks (any label if it marks none)."""
    nth = keys.randint(key, among.sum().clamp(min=1), n)
    return (among.cumsum(0).unsqueeze(0) <= nth.unsqueeze(1)).sum(dim=1).clamp(max=len(among) - 1)


def raw_moments(me: Client, z: Tensor) -> Tensor:
    """``[2, d]``: the means of the features and of their squares; the weighted mean of these is the whole's."""
    w = torch.ones_like(z[:, 0]) if me.train.w is None else me.train.w
    return torch.stack([w @ z, w @ z.square()]) / me.size.clamp(min=1.0)


def label_means(me: Client, z: Tensor) -> Tensor:
    """``[C, d]``: the means of ``z`` by label, as if each had one sample more, at 0: few samples claim little, and a
    label that the client lacks claims nothing."""
    hot = one_hot_labels(me)
    return hot.mT @ z / (hot.sum(dim=0) + 1.0).unsqueeze(1)


@lru_cache
def first_weights(flow: Flow) -> Tree:
    """A flow's names and shapes, and the weights that all clients start from."""
    return flow.init(keys.fold_in(keys.key(0), "fcca", "flow"))


@lru_cache
def start_of(flow: Flow) -> Tensor:
    """The same as a vector."""
    return vector(first_weights(flow))


@lru_cache
def projection(width: int, dim: int) -> Tensor:
    """``[width, dim]``: orthonormal columns, the same everywhere."""
    q: Tensor = torch.linalg.qr(keys.normal(keys.fold_in(keys.key(0), "fcca", "projection"), width, dim)).Q
    return q
