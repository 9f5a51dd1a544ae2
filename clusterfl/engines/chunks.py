"""Which clients are computed together, and how their replies come back in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, take_row, take_rows
from clusterfl.message import Fields
from clusterfl.tree import Tree, stack

SMALL = 32  # shards up to this length are stacked whatever their sizes: padding them costs next to nothing


@dataclass(frozen=True)
class Plan:
    """How a worker computes; part of a run's resolved config, for it decides the last bits."""

    stacked: bool = False
    chunk: int = 64
    channels_last: bool = False
    spread: float = 1.25  # clients that are stacked differ at most by this factor in size


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
            floor = most if exact else min(most, 1) if most <= SMALL else most / plan.spread
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
                yield Chunk(torch.tensor(ready[start:stop]), {n: take_rows(v, rows) for n, v in fields.items()})
        else:
            yield Chunk(torch.tensor(ready), _collect([waiting[p] for p in ready]))
        for p in ready:
            del waiting[p]


def _runs(places: list[tuple[Fields, int]]) -> list[tuple[int, int]]:
    """(start, stop) of rows that lie one after another in one chunk."""
    starts = [p for p, (f, j) in enumerate(places) if not p or places[p - 1][0] is not f or places[p - 1][1] != j - 1]
    return list(pairwise([*starts, len(places)]))


def stack_fields(done: list[Fields]) -> Fields:
    out: Fields = {}
    for name, first in done[0].items():
        values: list[Any] = [d[name] for d in done]
        out[name] = torch.stack(values) if isinstance(first, Tensor) else stack(values)
    return out


def _collect(places: list[tuple[Fields, int]]) -> Fields:
    """Rows out of several chunks, in the order asked for."""
    if not places[0][0]:  # a procedure that replies nothing
        return {}
    return stack_fields([{n: take_row(v, j) for n, v in f.items()} for f, j in places])
