"""How far clients moved a model: what attacks falsify, privacy blurs and servers cut.

An update is what a reply holds minus the sent model that it began from, as the procedure declares (message.py). A
gradient is an update as it stands.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, take_rows
from clusterfl.engines.wrappers import Wrapper
from clusterfl.message import Fields, Gradient, Model
from clusterfl.task import Task
from clusterfl.tree import Tree, take

Parts = dict[tuple[str, str], Tensor]  # (reply field, tensor's name) -> one row per client


class Changing(Wrapper):
    """Changes clients' replies; server work and evaluation pass as they are."""

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            yield chunk if call.server or call.measure else self.change(call, chunk)

    @abstractmethod
    def change(self, call: Call, chunk: Chunk) -> Chunk:
        """The chunk as the server gets it."""


def updates(task: Task, call: Call, chunk: Chunk) -> tuple[Parts, Parts]:
    """What the models in a chunk of replies began from, and how far clients moved them: all that trains in them."""
    still = {*task.fixed, *task.buffers}
    start: Parts = {}
    moves: Parts = {}
    for field, tree in chunk.fields.items():
        kind = call.declared.get(field)
        if isinstance(tree, Tensor) or not isinstance(kind, Model | Gradient):
            continue
        origin = origin_of(call, chunk, kind) if isinstance(kind, Model) else {}
        for name, t in tree.items():
            if t.is_floating_point() and name not in still:
                start[field, name] = origin[name] if name in origin else torch.zeros_like(t)
                moves[field, name] = t - start[field, name]
    return start, moves


def origin_of(call: Call, chunk: Chunk, kind: Model) -> Tree:
    """The sent models ``[m, …]`` that the clients of a chunk began from."""
    m, row = len(chunk.positions), kind.row
    if kind.of in call.each:
        mine: Any = take_rows(call.each[kind.of], chunk.positions)
    else:
        shared: Any = call.shared[kind.of]
        if isinstance(row, str):  # one of K that all were sent
            return take(shared, _rows_of(chunk, row))
        mine = {n: t.unsqueeze(0).expand(m, *t.shape) for n, t in shared.items()}
    if row is None:
        return dict(mine)
    which = _rows_of(chunk, row) if isinstance(row, str) else torch.full((m,), row)
    return {n: t[torch.arange(m), which] for n, t in mine.items()}


def _rows_of(chunk: Chunk, field: str) -> Tensor:
    rows = chunk.fields[field]
    assert isinstance(rows, Tensor)
    return rows


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
