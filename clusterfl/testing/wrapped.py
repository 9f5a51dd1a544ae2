"""Methods where replies do not come as clients made them: cut, blurred, falsified, masked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk, join, take_row
from clusterfl.data.population import Population
from clusterfl.engines import Serial
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.engines.wrappers.attack import Attack, AttackConfig
from clusterfl.engines.wrappers.clip import Clip
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.message import Cluster, Gradient, Model, Weight
from clusterfl.method import Method
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close, assert_served, tensors
from clusterfl.testing.small import CLIENTS, play
from clusterfl.tree import Tree, row, rows, vector


class _Watched(Wrapper):
    """Keeps what passed between the clients and the wrapper around this one."""

    def __init__(self, inner: BaseEngine) -> None:
        super().__init__(inner)
        self.passed: list[tuple[Call, Chunk]] = []

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            if not (call.server or call.measure):
                self.passed.append((call, chunk))
            yield chunk


def check_wrapped(method: Method[Any], task: Task, population: Population) -> None:
    """Under a server's limit, private and lying clients the method goes on with finite models; and what the limit
    cuts is the update: all models that come through it lie within it of a model that was sent."""
    ids, limit = torch.arange(CLIENTS), 1e-3
    wrapped: dict[str, BaseEngine] = {
        "clip": _Watched(Clip(Serial(task, population), limit)),
        "attack": Attack(Serial(task, population), AttackConfig("gaussian", scale=2.0), torch.tensor([0, 3])),
    }
    if importlib.util.find_spec("dp_accounting") is not None:
        wrapped["privacy"] = Private(Serial(task, population), PrivacyConfig(clip=0.5, noise_multiplier=0.1))
    for what, engine in wrapped.items():
        state = play(method, engine)
        assert_served(method, method.serve(state, ids), ids)
        for path, t in tensors(state):
            assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{method.name}, {what}: {path}"
    watched = wrapped["clip"]
    assert isinstance(watched, _Watched)
    for call, chunk in watched.passed:
        for field, kind in call.declared.items():
            tree = chunk.fields.get(field)
            if isinstance(kind, Model) and isinstance(tree, dict):
                far = _distance_to_sent(call, chunk, tree, task)
                assert far <= 1.01 * limit, f"{method.name}: {call.label} has {field} cut to {far:g} from what was sent"


def _distance_to_sent(call: Call, chunk: Chunk, tree: Tree, task: Task) -> float:
    """The largest distance of a client's model to the nearest model of all that it was sent, whatever their names."""
    moving = [n for n in tree if n not in (*task.fixed, *task.buffers)]
    worst = 0.0
    for j, p in enumerate(chunk.positions.tolist()):
        mine = vector(row(tree, j), moving)
        sent = [*call.shared.values(), *(take_row(v, p) for v in call.each.values())]
        near = []
        for value in sent:
            if isinstance(value, dict) and all(n in value for n in moving):
                stacked = value[moving[0]].dim() > tree[moving[0]].dim() - 1
                models = [row(value, k) for k in range(rows(value))] if stacked else [value]
                near += [float((vector(m, moving) - mine).norm()) for m in models]
        worst = max(worst, min(near))
    return worst


class _Masked(Wrapper):
    """What the server of a secure aggregation gets: replies that tell nothing by themselves and have the same sums.

    Each client adds a mask; those of the clients that chose the same cluster cancel in the (weighted) sum.
    """

    def execute(self, call: Call) -> Iterator[Chunk]:
        chunks = list(self.inner.execute(call))
        if call.server or call.measure or not chunks:
            yield from chunks
            return
        fields: dict[str, Any] = join((chunk.fields for chunk in chunks), len(call.ids))
        ids = torch.cat([chunk.positions for chunk in chunks])
        weights = [fields[n] for n, k in call.declared.items() if isinstance(k, Weight) and n in fields]
        homes = [fields[n] for n, k in call.declared.items() if isinstance(k, Cluster) and n in fields]
        w = weights[0] if weights else torch.ones(len(ids))
        s = homes[0] if homes else torch.zeros(len(ids), dtype=torch.int64)
        for name, kind in call.declared.items():
            if isinstance(kind, Model | Gradient) and isinstance(fields.get(name), dict):
                masks = {n: _cancelling(keys.fold_in(call.key, name, n), t, w, s) for n, t in fields[name].items()}
                fields[name] = {n: t + masks[n] for n, t in fields[name].items()}
        yield Chunk(ids, fields)


def _cancelling(key: Tensor, like: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Noise ``[m, …]`` whose sum weighted by ``w`` is zero among the rows of equal ``s``."""
    noise = keys.normal(key, *like.shape).to(like.dtype)
    for k in s.unique().tolist():
        mine = (s == k).nonzero().flatten()
        share = w[mine] / w[mine].sum()
        noise[mine] -= torch.einsum("m,m...->...", share, noise[mine])
    return noise


def check_sums(method: Method[Any], task: Task, population: Population) -> None:
    """A method that says that it needs only sums reaches the same state where single replies tell nothing."""
    if method.only_sums():
        plain, masked = (play(method, engine) for engine in _pair(task, population))
        assert_close(plain, masked, f"{method.name}: with single replies masked", 1e-3)


def _pair(task: Task, population: Population) -> tuple[BaseEngine, BaseEngine]:
    return Serial(task, population), _Masked(Serial(task, population))
