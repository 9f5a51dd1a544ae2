"""What runs client procedures, in every engine: one after another (eager) or a chunk at a time (stacked)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from clusterfl.call import Call, Chunk, check_reply, take_row, take_rows
from clusterfl.client import Client, Shard, gather
from clusterfl.cohort import one_thread
from clusterfl.data.shards import Shards
from clusterfl.engines.chunks import Plan, in_order, stack_fields, stacking
from clusterfl.errors import ClientError
from clusterfl.evaluate.procedures import row_scores
from clusterfl.keys import fold_in
from clusterfl.message import Fields
from clusterfl.parts.private import check_hidden
from clusterfl.task import Task
from clusterfl.tree import Tree, row, stack

EAGER_CHUNK = 16  # replies that are stacked and handed on together


class Worker:
    """Owns shards and client state; runs procedures on one thread."""

    def __init__(self, task: Task, train: Shards, test: Shards, plan: Plan, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.plan = plan
        self.task = task.in_channels_last(plan.channels_last and not plan.stacked)  # vmap orders memory its own way
        self.set_shards(train, test)
        self.states: dict[int, Tree] = {}
        self.before: dict[int, Tree] = {}  # what clients kept before the call under way, where it changed that

    def set_shards(self, train: Shards, test: Shards) -> None:
        """What clients have, from now on."""
        self.train, self.test = self._place(train), self._place(test)

    def _place(self, shards: Shards) -> Shards:
        x = shards.x.to(self.device)
        if self.plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        rows = shards.rows.to(self.device) if isinstance(shards.rows, Tensor) else shards.rows
        return Shards(x, shards.y.to(self.device), rows, shards.offsets)

    def _no_rows(self) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=self.device)

    def run(self, call: Call) -> Iterator[Chunk]:
        """Chunks in the order of ``call.ids``."""
        with one_thread(), torch.no_grad():
            if self.plan.stacked:
                yield from self._run_stacked(call)
            else:
                yield from self._run_eager(call)

    def _run_eager(self, call: Call) -> Iterator[Chunk]:
        shared = _to(call.shared, self.device)
        for start in range(0, len(call.ids), EAGER_CHUNK):
            positions = torch.arange(start, min(start + EAGER_CHUNK, len(call.ids)))
            yield Chunk(positions, stack_fields([self._one(call, shared, int(p)) for p in positions]))

    def _one(self, call: Call, shared: Fields, position: int) -> Fields:
        i = int(call.ids[position])
        each = _to({n: take_row(v, position) for n, v in call.each.items()}, self.device)
        me = self._client(call, position)
        try:
            reply = dict(getattr(call.method, call.name)(me, **shared, **each))
            if not call.server:
                check_reply(call, reply, me.kept, {**shared, **each})
                check_hidden(call.method, reply, call.declared, me)
        except Exception as e:
            raise ClientError(call.label, i, f"{type(e).__name__}: {e}") from e
        if me.kept and not call.measure:
            self._keep(i, _cpu(me.kept))
        fields: Fields = _cpu(reply)
        return fields

    def _client(self, call: Call, position: int) -> Client:
        i = int(call.ids[position])
        key = call.client_key(i).to(self.device)
        if call.server:
            none = Shard(self.train.x[:0], self.train.y[:0], self._no_rows(), 0)
            return Client(self.task, none, none, key, call.round)
        tested = i if call.test_of is None else int(call.test_of[position])
        train, test = self.train.rows_of(i), self.test.rows_of(tested)
        return Client(
            self.task,
            Shard(self.train.x, self.train.y, train, len(train)),
            Shard(self.test.x, self.test.y, test, len(test)),
            key,
            call.round,
            _to(self.states.get(i, {}), self.device),
            smallest=len(train),
        )

    def _run_stacked(self, call: Call) -> Iterator[Chunk]:
        chunks = stacking(call, self.train.sizes, self.states, self.plan, exact=self.task.coupled)
        yield from in_order(Chunk(positions, self._together(call, positions)) for positions in chunks)

    def _together(self, call: Call, positions: Tensor) -> Fields:
        ids = call.ids[positions]
        keys = fold_in(call.key, ids).to(self.device)
        each = _to({n: take_rows(v, positions) for n, v in call.each.items()}, self.device)
        shared = _to(call.shared, self.device)
        procedure = getattr(call.method, call.name)
        if call.server:
            train, n_train = self._no_rows().expand(len(ids), 0), torch.zeros(len(ids), dtype=torch.int64)
            test, n_test = train, n_train
            state: Tree = {}
        else:
            train, n_train = _padded(self.train, ids)
            test, n_test = _padded(self.test, ids if call.test_of is None else call.test_of[positions])
            states = [self.states.get(i, {}) for i in ids.tolist()]
            state = _to(stack(states), self.device) if states[0] else {}
        ragged, ragged_test = bool((n_train != n_train[0]).any()), bool((n_test != n_test[0]).any())
        smallest = int(n_train.min())
        kept_out: Tree = {}

        def body(
            key: Tensor, rows: Tensor, n: Tensor, rows_test: Tensor, n_t: Tensor, state: Tree, each: Fields
        ) -> tuple[Fields, Tree]:
            me = Client(
                self.task,
                Shard(self.train.x, self.train.y, rows, n if ragged else smallest, ragged),
                Shard(self.test.x, self.test.y, rows_test, n_t if ragged_test else int(n_test[0]), ragged_test),
                key,
                call.round,
                state,
                stacked=True,
                smallest=smallest,
            )
            reply = dict(procedure(me, **shared, **each))
            if not call.server:
                check_reply(call, reply, me.kept, {**shared, **each})
                check_hidden(call.method, reply, call.declared, me)
            return reply, me.kept

        n_train_d, n_test_d = n_train.to(self.device), n_test.to(self.device)
        try:
            fields, kept_out = vmap(body)(keys, train, n_train_d, test, n_test_d, state, each)
        except Exception as e:
            raise self._culprit(call, positions, e) from e
        if kept_out and not call.measure:
            kept = _cpu(kept_out)
            for j, i in enumerate(ids.tolist()):
                self._keep(i, row(kept, j))
        out: Fields = _cpu(fields)
        return out

    def _keep(self, i: int, kept: Tree) -> None:
        self.before.setdefault(i, self.states.get(i, {}))
        self.states[i] = {**self.states.get(i, {}), **kept}

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

    def score_rows(self, theta: Tree, rows: Tensor, *, outputs: bool = False) -> Tree:
        """What each of these test samples scores (evaluate/)."""
        with one_thread(), torch.no_grad():
            theta = _to(theta, self.device)
            rows = rows.to(self.device)
            return row_scores(self.task, theta, gather(self.test.x, rows), self.test.y[rows], outputs=outputs)


def _padded(shards: Shards, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers ``[m, longest]`` and true lengths; padding repeats the shard's first row."""
    sizes = shards.sizes[ids]
    longest = int(sizes.max())
    within = torch.arange(longest)
    return shards.at(ids.unsqueeze(1), torch.where(within < sizes.unsqueeze(1), within, 0)), sizes


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return {n: _to(v, device) for n, v in value.items()}


def _cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu").contiguous()
    return {n: _cpu(v) for n, v in value.items()}
