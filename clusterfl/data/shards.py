"""Every client's samples as rows over one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clusterfl import keys

PIECE = 1 << 17  # rows that are looked at together


@dataclass(frozen=True)
class Shards:
    """Every client's samples as row numbers into one pool, so that clients may share samples for free."""

    x: Tensor  # [pool, ...] float32, or int64 where the model has an embedding
    y: Tensor  # [pool] int64 classes, or [pool, ...] float32 numbers
    rows: Tensor  # [total] int64: the clients' row numbers, one client after another
    offsets: Tensor  # [N + 1] int64: client i owns rows[offsets[i] : offsets[i + 1]]

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @cached_property
    def sizes(self) -> Tensor:
        """Samples per client ``[N]``."""
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def same(self) -> Tensor:
        """``[N]``: the first client that has the very same rows in the same order."""
        sums, pieces = [], torch.arange(len(self)).split(max(1, len(self) * PIECE // max(len(self.rows), 1)))
        for ids in pieces:  # a hash of each client's rows and their order
            rows, sizes = self.rows_of_all(ids), self.sizes[ids]
            first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
            order = torch.arange(len(rows)) - first
            mixed = keys.fold_in(keys.key(0), order * 2**32 + rows)
            sums.append(torch.zeros(len(ids), dtype=torch.int64).index_add_(0, _owners(sizes), mixed))
        _, alike = (torch.cat(sums) ^ (self.sizes * 2**40)).unique(return_inverse=True)
        found = torch.full((int(alike.max()) + 1,), len(self)).scatter_reduce(0, alike, torch.arange(len(self)), "amin")
        found = found[alike]
        for ids in pieces:  # whoever only has the same hash is alone
            differs = self.sizes[ids] != self.sizes[found[ids]]
            mine, theirs = self.rows_of_all(ids[~differs]), self.rows_of_all(found[ids[~differs]])
            wrong = torch.zeros(len(ids), dtype=torch.int64)
            wrong[~differs] = torch.zeros(int((~differs).sum()), dtype=torch.int64).index_add_(
                0, _owners(self.sizes[ids[~differs]]), (mine != theirs).long()
            )
            found[ids] = torch.where(differs | (wrong > 0), ids, found[ids])
        return found

    def rows_of(self, i: int) -> Tensor:
        return self.rows[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def rows_of_all(self, ids: Tensor) -> Tensor:
        """The rows of the clients ``ids``, one client after another."""
        sizes = self.sizes[ids]
        first = self.offsets[ids] - (sizes.cumsum(0) - sizes)
        return self.rows[first.repeat_interleave(sizes) + torch.arange(int(sizes.sum()))]

    def of(self, i: int) -> tuple[Tensor, Tensor]:
        """Client i's samples and labels."""
        rows = self.rows_of(i)
        return self.x[rows], self.y[rows]

    def select(self, ids: Tensor) -> Shards:
        """Shards of the clients ``ids``, in that order, over the same pool."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes[ids].cumsum(0)])
        return Shards(self.x, self.y, self.rows_of_all(ids), offsets)

    @staticmethod
    def from_rows(x: Tensor, y: Tensor, rows: Sequence[Tensor]) -> Shards:
        """Shards over a pool that is cut down to the rows in use, so that it holds nothing else."""
        sizes = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        wanted = torch.cat(list(rows)) if rows else torch.zeros(0, dtype=torch.int64)
        used = torch.zeros(len(y), dtype=torch.bool)
        used[wanted] = True
        return Shards(x[used], y[used], (used.cumsum(0) - 1)[wanted], offsets)

    @staticmethod
    def from_parts(parts: Sequence[tuple[Tensor, Tensor]]) -> Shards:
        """Shards of clients that each bring their own arrays."""
        sizes = torch.tensor([len(y) for _, y in parts], dtype=torch.int64)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        x = torch.cat([x for x, _ in parts])
        y = torch.cat([y for _, y in parts])
        return Shards(x, y, torch.arange(len(y)), offsets)


def _owners(sizes: Tensor) -> Tensor:
    """Of each row the position of its client."""
    return torch.arange(len(sizes)).repeat_interleave(sizes)
