"""Replies are checked where they enter: a bad client is rejected, counted and named; the round goes on.

What a reply should look like is found by running the procedure once on a made-up client with two samples
of zeros: names, shapes and dtypes must be the same. Values must be finite; what is declared as a weight must be
positive and no more than ``most``, and a cluster id one of the rows that the client could choose from. What a client
keeps must be finite too, and is committed only with an accepted reply: a rejected client keeps what it had.

Nothing here outlives a round: counts are written into the round's record, so a resume needs none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, length, take_row, take_rows, tensors_of
from clusterfl.client import Client, Shard
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.message import Cluster, Fields, Payload, Weight
from clusterfl.tree import is_finite

log = logging.getLogger(__name__)

Schema = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Guard(Wrapper):
    """Lets only sound replies through."""

    def __init__(self, inner: BaseEngine, *, sample: Tensor, most: float = 1e7) -> None:
        super().__init__(inner)
        self.sample, self.most = sample, most
        self.rejected: dict[int, int] = {}  # client -> how often
        self._schemas: dict[object, Schema | None] = {}

    def rejections(self) -> int:
        return super().rejections() + sum(self.rejected.values())

    def execute(self, call: Call) -> Iterator[Chunk]:
        if call.server or call.measure:
            yield from self.inner.execute(call)
            return
        for chunk in self.inner.execute(call):
            reasons = self._reasons(call, chunk)
            ids = call.ids[chunk.positions].tolist()
            self.inner.take_back([i for i, reason in zip(ids, reasons, strict=True) if reason])
            for p, reason in zip(chunk.positions.tolist(), reasons, strict=True):
                if reason:
                    client = int(call.ids[p])
                    self.rejected[client] = self.rejected.get(client, 0) + 1
                    self.inner.note_rejection(client)
                    name = self.population.names[client]
                    log.warning("%s: the reply of client %d (%s) is rejected: %s", call.label, client, name, reason)
            good = torch.tensor([j for j, reason in enumerate(reasons) if not reason], dtype=torch.int64)
            if len(good) == len(chunk.positions):
                yield chunk
            elif len(good):
                yield Chunk(chunk.positions[good], {n: take_rows(v, good) for n, v in chunk.fields.items()})

    def _reasons(self, call: Call, chunk: Chunk) -> list[str]:
        """For each client of the chunk why it is rejected, or ''."""
        m = len(chunk.positions)
        wrong = self._shape_fault(call, chunk)
        if wrong:
            return [wrong] * m
        reasons = [""] * m
        for name, t in flatten(chunk.fields).items():
            if t.is_floating_point():
                _note(reasons, ~finite(t.reshape(m, -1)), f"{name} is not finite")
        for field, kind in call.declared.items():
            value = chunk.fields.get(field)
            if isinstance(value, Tensor) and isinstance(kind, Weight):
                out = (value <= 0) | (value > self.most)
                _note(reasons, out, f"{field} should be above 0 and at most {self.most:g}")
            elif isinstance(value, Tensor) and isinstance(kind, Cluster):
                k = choices(call, kind)
                _note(reasons, (value < 0) | (value >= k), f"{field} should be between 0 and {k - 1}")
        kept = self.inner.newly_kept(call.ids[chunk.positions].tolist())
        for j, i in enumerate(call.ids[chunk.positions].tolist()):
            if not reasons[j] and not is_finite(kept.get(i, {})):
                reasons[j] = "what it keeps is not finite"
        return reasons

    def _shape_fault(self, call: Call, chunk: Chunk) -> str:
        schema = self._schema(call)
        if schema is None:
            unknown = sorted(chunk.fields.keys() - call.declared.keys())
            return f"its fields {unknown} should be declared" if unknown else ""
        got = {n: (t.dtype, tuple(t.shape[1:])) for n, t in flatten(chunk.fields).items()}
        if got.keys() != schema.keys():
            return f"its fields should be {sorted(schema)}, not {sorted(got)}"
        for name, (dtype, shape) in got.items():
            if (dtype, shape) != schema[name]:
                return f"{name} should be {schema[name][0]} {list(schema[name][1])}, not {dtype} {list(shape)}"
        return ""

    def _schema(self, call: Call) -> Schema | None:
        """What a reply should look like, which may depend on the shapes that are sent; None if nobody can say."""
        sent = {**flatten(call.shared), **{n: t[0] for n, t in flatten(call.each).items()}}
        at = (call.method, call.name, tuple((n, tuple(t.shape)) for n, t in sent.items()))
        if at not in self._schemas:
            self._schemas[at] = self._rehearse(call)
        return self._schemas[at]

    def _rehearse(self, call: Call) -> Schema | None:
        x = torch.zeros(2, *self.sample.shape, dtype=self.sample.dtype)
        shard = Shard(x, torch.zeros(2, dtype=torch.int64), torch.arange(2), 2)
        me = Client(self.task, shard, shard, call.client_key(-1), call.round, smallest=2)
        each: dict[str, Payload] = {n: take_row(v, 0) for n, v in call.each.items()}
        try:
            with torch.no_grad():
                reply = dict(getattr(call.method, call.name)(me, **call.shared, **each))
        except Exception as e:
            log.warning(
                "%s: the shapes of its replies are not checked: on a made-up client it fails (%s)", call.label, e
            )
            return None
        return {n: (t.dtype, tuple(t.shape)) for n, t in flatten(reply).items()}


def choices(call: Call, kind: Cluster) -> int:
    """How many clusters a client could choose from: the rows of what it was sent."""
    if kind.of in call.shared:
        return length(call.shared[kind.of])
    return length(take_row(call.each[kind.of], 0))


def flatten(fields: Fields) -> dict[str, Tensor]:
    """Tensors by name, those of a tree by ``field.name``."""
    return {f"{field}.{name}" if name else field: t for field, name, t in tensors_of(fields)}


def finite(rows: Tensor) -> Tensor:
    """Which rows hold finite numbers only. A sum tells, unless it overflows; then each number is looked at."""
    good = rows.sum(dim=1).isfinite()
    for j in (~good).nonzero().flatten().tolist():
        good[j] = rows[j].isfinite().all()
    return good


def _note(reasons: list[str], bad: Tensor, why: str) -> None:
    for j in bad.nonzero().flatten().tolist():
        reasons[j] = reasons[j] or why
