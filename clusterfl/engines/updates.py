"""How far clients moved a model: what attacks falsify, privacy blurs and servers cut.

An update is what a reply holds minus what the client was sent. A gradient is an update as it stands.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from clusterfl.client import Call, Chunk, Fields
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.flaky import Wrapper
from clusterfl.tree import Tree, take

Parts = dict[tuple[str, str], Tensor]  # (reply field, tensor's name) -> one row per client

GRADIENTS = ("grad",)  # reply fields that are updates by themselves


class Changing(Wrapper):
    """Changes models in clients' replies; server work and evaluation pass as they are."""

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            yield chunk if call.server or call.measure else self.change(call, chunk)

    @abstractmethod
    def change(self, call: Call, chunk: Chunk) -> Chunk:
        """The chunk as the server gets it."""


class Clip(Changing):
    """The server's own limit: an update longer than ``limit`` is cut to that length, whoever sent it."""

    def __init__(self, inner: BaseEngine, limit: float) -> None:
        if not limit > 0:
            raise ValueError(f"clip_updates={limit} should be above 0")
        super().__init__(inner)
        self.limit = limit

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        start, moves = updates(call, chunk, self.task.params)
        if not moves:
            return chunk
        length = norms(moves)
        return put(chunk, start, scaled(moves, self.limit / length), length > self.limit)


def updates(call: Call, chunk: Chunk, names: Collection[str] | None = None) -> tuple[Parts, Parts]:
    """What the models in a chunk of replies started from, and how far clients moved them.

    All floating tensors, or only those called ``names``. What was not sent down started from zero.
    """
    start: Parts = {}
    moves: Parts = {}
    for field, tree in chunk.fields.items():
        if isinstance(tree, Tensor):
            continue
        sent = [] if field in GRADIENTS else list(_sent(call, chunk, field))
        for name, t in tree.items():
            if t.is_floating_point() and (names is None or name in names):
                at = (field, name)
                start[at] = next((s[name] for s in sent if name in s and s[name].shape == t.shape), torch.zeros_like(t))
                moves[at] = t - start[at]
    return start, moves


def _sent(call: Call, chunk: Chunk, field: str) -> Iterator[Tree]:
    """Models that were sent to these clients, the likeliest origin of a reply's ``field`` first."""
    at, s = chunk.positions, chunk.fields.get("s")
    for name in (field, "theta"):
        own, common = call.each.get(name), call.shared.get(name)
        if isinstance(own, dict):
            yield take(own, at)
        if isinstance(common, dict):
            yield {n: t.unsqueeze(0).expand(len(at), *t.shape) for n, t in common.items()}
    centers, models = call.shared.get("centers"), call.each.get("models")
    if isinstance(centers, dict) and isinstance(s, Tensor):  # the client chose one of K
        yield take(centers, s)
    if isinstance(models, dict):  # several models, the client's own first
        yield {n: t[at, 0] for n, t in models.items()}


def norms(moves: Parts) -> Tensor:
    """The length of every client's update ``[m]``."""
    # row by row: the sum of a row must not depend on how many clients are in the chunk
    squares = [torch.stack([r.double().square().sum() for r in t]) for t in moves.values()]
    return torch.stack(squares, dim=1).sum(dim=1).sqrt()


def scaled(moves: Parts, factor: Tensor) -> Parts:
    """Every client's update times its own factor."""
    return {at: t * factor.reshape(-1, *([1] * (t.dim() - 1))).to(t.dtype) for at, t in moves.items()}


def put(chunk: Chunk, start: Parts, moves: Parts, which: Tensor) -> Chunk:
    """The chunk with these updates where ``which`` [m] says so; all other replies keep their bits."""
    fields: Fields = {}
    for field, value in chunk.fields.items():
        if isinstance(value, Tensor):
            fields[field] = value
            continue
        new: dict[str, Any] = dict(value)
        for name, t in value.items():
            if (field, name) in moves:
                mask = which.reshape(-1, *([1] * (t.dim() - 1)))
                new[name] = torch.where(mask, start[field, name] + moves[field, name], t)
        fields[field] = new
    return Chunk(chunk.positions, fields)
