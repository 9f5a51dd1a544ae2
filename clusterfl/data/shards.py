"""Every client's samples as rows over one pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data.rules import Rule, Shared
from clusterfl.errors import DataError

PIECE = 1 << 17  # rows that are looked at together


@dataclass(frozen=True)
class Shards:
    """Every client's samples as row numbers into one pool, so that clients may share samples for free."""

    x: Tensor  # [pool, ...] float32, or int64 where the model has an embedding
    y: Tensor  # [pool] int64 classes, or [pool, ...] float32 numbers
    rows: Tensor | Rule  # [total] int64: the clients' row numbers, one client after another; or how they are found
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
        if isinstance(self.rows, Shared):
            return self._same_group(self.rows)
        sums, pieces = [], list(self.pieces())
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

    def _same_group(self, shared: Shared) -> Tensor:
        """As :attr:`same`, from one client of each group."""
        group, n = shared.group, len(shared.first)
        first = torch.full((n,), len(self)).scatter_reduce(0, group, torch.arange(len(self)), "amin")
        some = (first < len(self)).nonzero().flatten()
        listed = Shards(self.x, self.y, self.rows_of_all(first[some]), _offsets(self.sizes[first[some]]))
        alike = torch.empty(n, dtype=torch.int64)
        alike[some] = some[listed.same]
        found = torch.full((n,), len(self)).scatter_reduce(0, alike[some], first[some], "amin")
        return found[alike[group]]

    def pieces(self) -> Iterator[Tensor]:
        """All clients, as many at a time as have some hundred thousand rows together."""
        yield from torch.arange(len(self)).split(max(1, len(self) * PIECE // max(int(self.offsets[-1]), 1)))

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        """Of each client in ``ids`` the row at place ``within``, as broadcast."""
        if isinstance(self.rows, Tensor):
            return self.rows[(self.offsets[ids] + within).to(self.rows.device)]
        rows = self.rows.at(ids, within)
        if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < len(self.y)):
            raise DataError(f"a rule's row numbers should be at least 0 and below the {len(self.y)} of the pool")
        return rows.to(self.y.device)

    def rows_of(self, i: int) -> Tensor:
        start, end = int(self.offsets[i]), int(self.offsets[i + 1])
        if isinstance(self.rows, Tensor):
            return self.rows[start:end]
        return self.at(torch.tensor(i), torch.arange(end - start))

    def rows_of_all(self, ids: Tensor) -> Tensor:
        """The rows of the clients ``ids``, one client after another."""
        sizes = self.sizes[ids]
        first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return self.at(ids.repeat_interleave(sizes), torch.arange(len(first)) - first)

    @property
    def listed(self) -> Tensor:
        """The rows of all clients, in full."""
        return self.rows if isinstance(self.rows, Tensor) else self.rows_of_all(torch.arange(len(self)))

    def of(self, i: int) -> tuple[Tensor, Tensor]:
        """Client i's samples and labels."""
        rows = self.rows_of(i)
        return self.x[rows], self.y[rows]

    def select(self, ids: Tensor) -> Shards:
        """Shards of the clients ``ids``, in that order, over the same pool."""
        rows = self.rows_of_all(ids) if isinstance(self.rows, Tensor) else self.rows.chosen(ids)
        return Shards(self.x, self.y, rows, _offsets(self.sizes[ids]))

    def shared_by(self, group: Tensor) -> Shards:
        """Shards of clients that hold what the client ``group[i]`` of these holds."""
        return Shards(self.x, self.y, Shared(self.listed, self.offsets[:-1], group), _offsets(self.sizes[group]))

    @staticmethod
    def from_rows(x: Tensor, y: Tensor, rows: Sequence[Tensor]) -> Shards:
        """Shards over a pool that is cut down to the rows in use, so that it holds nothing else."""
        sizes = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        wanted = torch.cat(list(rows)) if rows else torch.zeros(0, dtype=torch.int64)
        used = torch.zeros(len(y), dtype=torch.bool)
        used[wanted] = True
        return Shards(x[used], y[used], (used.cumsum(0) - 1)[wanted], _offsets(sizes))

    @staticmethod
    def from_parts(parts: Sequence[tuple[Tensor, Tensor]]) -> Shards:
        """Shards of clients that each bring their own arrays."""
        sizes = torch.tensor([len(y) for _, y in parts], dtype=torch.int64)
        x = torch.cat([x for x, _ in parts])
        y = torch.cat([y for _, y in parts])
        return Shards(x, y, torch.arange(len(y)), _offsets(sizes))


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def _owners(sizes: Tensor) -> Tensor:
    """Of each row the position of its client."""
    return torch.arange(len(sizes)).repeat_interleave(sizes)
