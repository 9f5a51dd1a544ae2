"""What runs client procedures, in every engine: one after another (eager) or a chunk at a time (stacked)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from clusterfl.client import Call, Chunk, Client, Fields, Payload, Shard, gather
from clusterfl.data.population import Shards
from clusterfl.errors import ClientError
from clusterfl.keys import fold_in
from clusterfl.task import Task
from clusterfl.tree import Tree, row, stack

EAGER_CHUNK = 16  # replies that are stacked and handed on together
SMALL = 32  # shards up to this length are stacked whatever their sizes: padding them costs next to nothing


@dataclass(frozen=True)
class Plan:
    """How a worker computes; part of a run's resolved config, for it decides the last bits."""

    stacked: bool = False
    chunk: int = 64
    channels_last: bool = False
    spread: float = 1.25  # clients that are stacked differ at most by this factor in size


class Worker:
    """Owns shards and client state; runs procedures on one thread."""

    def __init__(self, task: Task, train: Shards, test: Shards, plan: Plan, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.task, self.plan = task, plan
        task.channels_last = plan.channels_last and not plan.stacked  # vmap orders memory its own way
        self.hold(train, test)
        self.states: dict[int, Tree] = {}

    def hold(self, train: Shards, test: Shards) -> None:
        """What clients have, from now on."""
        self.train, self.test = self._place(train), self._place(test)

    def _place(self, shards: Shards) -> Shards:
        x = shards.x.to(self.device)
        if self.plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Shards(x, shards.y.to(self.device), shards.rows.to(self.device), shards.offsets)

    def run(self, call: Call) -> Iterator[Chunk]:
        """Chunks in the order of ``call.ids``."""
        with one_thread(), torch.no_grad():
            if self.plan.stacked:
                yield from self._run_stacked(call)
            else:
                yield from self._run_eager(call)

    def _run_eager(self, call: Call) -> Iterator[Chunk]:
        shared = _to(call.shared, self.device)
        for at in range(0, len(call.ids), EAGER_CHUNK):
            positions = torch.arange(at, min(at + EAGER_CHUNK, len(call.ids)))
            done = [self._one(call, shared, int(p)) for p in positions]
            yield Chunk(positions, _stack_fields(done))

    def _one(self, call: Call, shared: Fields, position: int) -> Fields:
        i = int(call.ids[position])
        each = _to({n: _at(v, position) for n, v in call.each.items()}, self.device)
        me = self._client(call, i)
        try:
            reply = getattr(call.method, call.name)(me, **shared, **each)
        except Exception as e:
            raise ClientError(call.label, i, f"{type(e).__name__}: {e}") from e
        if me.kept and not call.measure:
            self.states[i] = {**self.states.get(i, {}), **_cpu(me.kept)}
        fields: Fields = _cpu(dict(reply))
        return fields

    def _client(self, call: Call, i: int) -> Client:
        key = call.client_key(i).to(self.device)
        if call.server:
            none = Shard(self.train.x[:0], self.train.y[:0], self.train.rows[:0], 0)
            return Client(self.task, none, none, key, call.round)
        train, test = self.train.rows_of(i), self.test.rows_of(i)
        return Client(
            self.task,
            Shard(self.train.x, self.train.y, train, len(train)),
            Shard(self.test.x, self.test.y, test, len(test)),
            key,
            call.round,
            _to(self.states.get(i, {}), self.device),
            least=len(train),
        )

    def _run_stacked(self, call: Call) -> Iterator[Chunk]:
        chunks = stacking(call, self.train.sizes, self.states, self.plan, exact=self.task.coupled)
        yield from in_order(Chunk(positions, self._together(call, positions)) for positions in chunks)

    def _together(self, call: Call, positions: Tensor) -> Fields:
        ids = call.ids[positions]
        keys = fold_in(call.key, ids).to(self.device)
        each = _to({n: _rows(v, positions) for n, v in call.each.items()}, self.device)
        shared = _to(call.shared, self.device)
        procedure = getattr(call.method, call.name)
        if call.server:
            train, n_train = self.train.rows[:0].expand(len(ids), 0), torch.zeros(len(ids), dtype=torch.int64)
            test, n_test = train, n_train
            state: Tree = {}
        else:
            train, n_train = _padded(self.train, ids)
            test, n_test = _padded(self.test, ids)
            states = [self.states.get(i, {}) for i in ids.tolist()]
            state = _to(stack(states), self.device) if states[0] else {}
        ragged, ragged_test = bool((n_train != n_train[0]).any()), bool((n_test != n_test[0]).any())
        least = int(n_train.min())
        kept_out: Tree = {}

        def body(
            key: Tensor, rows: Tensor, n: Tensor, rows_test: Tensor, n_t: Tensor, state: Tree, each: Fields
        ) -> tuple[Fields, Tree]:
            me = Client(
                self.task,
                Shard(self.train.x, self.train.y, rows, n if ragged else least, ragged),
                Shard(self.test.x, self.test.y, rows_test, n_t if ragged_test else int(n_test[0]), ragged_test),
                key,
                call.round,
                state,
                stacked=True,
                least=least,
            )
            return dict(procedure(me, **shared, **each)), me.kept

        n_train_d, n_test_d = n_train.to(self.device), n_test.to(self.device)
        try:
            fields, kept_out = vmap(body)(keys, train, n_train_d, test, n_test_d, state, each)
        except Exception as e:
            raise self._culprit(call, positions, e) from e
        if kept_out and not call.measure:
            kept = _cpu(kept_out)
            for j, i in enumerate(ids.tolist()):
                self.states[i] = {**self.states.get(i, {}), **row(kept, j)}
        out: Fields = _cpu(fields)
        return out

    def _culprit(self, call: Call, positions: Tensor, cause: Exception) -> ClientError:
        """Runs a failed chunk's clients alone, to name the one that fails."""
        shared = _to(call.shared, self.device)
        for p in positions.tolist():
            try:
                self._one(call, shared, p)
            except ClientError as e:
                return e
        first = int(call.ids[positions[0]])
        return ClientError(call.label, first, f"only stacked with others: {type(cause).__name__}: {cause}")

    def score_rows(self, theta: Tree, rows: Tensor) -> Tensor:
        """``[len(rows), 3]``: whether each test sample is answered right, its loss, and the answer."""
        with one_thread(), torch.no_grad():
            theta = _to(theta, self.device)
            rows = rows.to(self.device)
            x, y = gather(self.test.x, rows), self.test.y[rows]
            logits = self.task.logits(theta, x)
            said = logits.argmax(1)
            columns = [said == y, self.task.per_sample(logits, y), said]
            return torch.stack([c.double() for c in columns], dim=1).cpu()


def stacking(call: Call, sizes: Tensor, states: Mapping[int, Tree], plan: Plan, *, exact: bool) -> Iterator[Tensor]:
    """Positions of clients that can be stacked: of like size and with the same kept state.

    It depends on the call alone, not on how many workers share it. ``exact``: only equal sizes
    (BatchNorm would see padding).
    """
    if call.server:  # two parts at least, so that two workers share the work
        yield from torch.arange(len(call.ids)).split(max(1, min(plan.chunk, -(-len(call.ids) // 2))))
        return
    wanted = sizes[call.ids].tolist()
    groups: dict[tuple[Any, ...], list[int]] = {}
    for p, i in enumerate(call.ids.tolist()):
        state = states.get(i, {})
        groups.setdefault(tuple((n, tuple(t.shape)) for n, t in sorted(state.items())), []).append(p)
    for members in groups.values():
        order = sorted(members, key=lambda p: (-wanted[p], p))
        at = 0
        while at < len(order):
            most, end = wanted[order[at]], at
            floor = most if exact else 1 if most <= SMALL else most / plan.spread
            while end < len(order) and end - at < plan.chunk and wanted[order[end]] >= floor:
                end += 1
            yield torch.tensor(sorted(order[at:end]))
            at = end


def in_order(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same rows in the order of their positions, whatever order the chunks come in."""
    given = 0
    waiting: dict[int, tuple[Fields, int]] = {}
    for positions, fields in chunks:
        for j, p in enumerate(positions.tolist()):
            waiting[p] = (fields, j)
        ready = []
        while given in waiting:
            ready.append(given)
            given += 1
        runs = _runs([waiting[p] for p in ready])
        if len(runs) == 1 or len(ready) >= 4 * len(runs):  # long enough to be handed on as they lie, without a copy
            for start, stop in runs:
                fields, j = waiting[ready[start]]
                rows = slice(j, j + stop - start)
                yield Chunk(torch.tensor(ready[start:stop]), {n: _rows(v, rows) for n, v in fields.items()})
        else:
            yield Chunk(torch.tensor(ready), _collect([waiting[p] for p in ready]))
        for p in ready:
            del waiting[p]


def _runs(places: list[tuple[Fields, int]]) -> list[tuple[int, int]]:
    """(start, stop) of rows that lie one after another in one chunk."""
    starts = [p for p, (f, j) in enumerate(places) if not p or places[p - 1][0] is not f or places[p - 1][1] != j - 1]
    return list(pairwise([*starts, len(places)]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Procedures run on one thread everywhere: parallelism is across clients, and bits do not depend on it."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _padded(shards: Shards, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers ``[m, longest]`` and true lengths; padding repeats the shard's first row."""
    sizes = shards.sizes[ids]
    longest = int(sizes.max())
    within = torch.arange(longest)
    at = shards.offsets[ids].unsqueeze(1) + torch.where(within < sizes.unsqueeze(1), within, 0)
    return shards.rows[at.to(shards.rows.device)], sizes


def _at(value: Payload, i: int) -> Payload:
    return value[i] if isinstance(value, Tensor) else row(value, i)


def _rows(value: Payload, positions: Tensor | slice) -> Payload:
    return value[positions] if isinstance(value, Tensor) else {n: t[positions] for n, t in value.items()}


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return {n: _to(v, device) for n, v in value.items()}


def _cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu").contiguous()
    return {n: _cpu(v) for n, v in value.items()}


def _stack_fields(done: list[Fields]) -> Fields:
    out: Fields = {}
    for name, first in done[0].items():
        values: list[Any] = [d[name] for d in done]
        out[name] = torch.stack(values) if isinstance(first, Tensor) else stack(values)
    return out


def _collect(places: list[tuple[Fields, int]]) -> Fields:
    """Rows out of several chunks, in the order asked for."""
    if not places[0][0]:  # a procedure that replies nothing
        return {}
    return _stack_fields([{n: _at(v, j) for n, v in f.items()} for f, j in places])
