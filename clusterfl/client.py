"""A client as its procedures see it: its samples, its randomness, what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.task import Task
from clusterfl.tree import Tree


class Batch(NamedTuple):
    """A mini-batch. ``w`` is None where no sample is padding, else 1 for samples and 0 for padding."""

    x: Tensor
    y: Tensor
    w: Tensor | None
    base: Key
    step: tuple[int | Tensor, ...] = ()  # (epoch, place in it), which make the batch's own key
    may_be_empty: bool = True  # it may be nothing but padding
    places: Tensor | None = None  # where its samples are in the client's shard

    @property
    def key(self) -> Key:
        """The batch's own randomness (dropout); folded when it is asked for, for few models do."""
        return keys.fold_in(self.base, *self.step)

    @property
    def active(self) -> Tensor | None:
        """Whether the batch holds any sample at all (None: it does)."""
        return None if self.w is None or not self.may_be_empty else self.w[0] > 0


def gather(pool: Tensor, rows: Tensor) -> Tensor:
    """``pool[rows]``, row by row in one copy each, stacked or not: two to five times as fast as indexing."""
    last = pool.dim() == 4 and not pool.is_contiguous()  # channels last: the rows lie in memory as [H, W, C]
    table = pool.movedim(1, -1) if last else pool
    samples = torch.embedding(table.reshape(len(pool), -1), rows).reshape(*rows.shape, *table.shape[1:])
    return samples.movedim(-1, -3) if last else samples


@dataclass
class Shard:
    """A client's samples: row numbers into a pool, which other clients may share."""

    pool_x: Tensor
    pool_y: Tensor
    rows: Tensor  # [length] int64, padded at the end in a ragged chunk
    n: int | Tensor  # how many of the rows are samples
    ragged: bool = False

    @property
    def length(self) -> int:
        return self.rows.shape[0]

    @property
    def x(self) -> Tensor:
        return gather(self.pool_x, self.rows)

    @property
    def y(self) -> Tensor:
        return self.pool_y[self.rows]

    @property
    def w(self) -> Tensor | None:
        """1 for samples, 0 for padding; None where nothing is padded."""
        return (torch.arange(self.length, device=self.rows.device) < self.n).float() if self.ragged else None

    def pieces(self, size: int = 500) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(x, y, w) in order, in pieces: batches over about a thousand images cost more per image."""
        w = self.w
        for start in range(0, self.length, size):
            rows = self.rows[start : start + size]
            yield gather(self.pool_x, rows), self.pool_y[rows], None if w is None else w[start : start + size]


@dataclass
class Client:
    """ "me": all that a client procedure may see.

    In a stacked engine every tensor here carries the client axis invisibly, ``n`` is a tensor, and the
    shards are padded to the longest of their chunk; ``train.w`` then tells samples from padding.
    """

    task: Task
    train: Shard
    test: Shard
    key: Key
    round: int = 0
    state: Tree = field(default_factory=dict)
    stacked: bool = False
    smallest: int = 0  # the least n of the clients that are stacked together
    kept: Tree = field(default_factory=dict)
    rule: Any = None  # the local rule under which gradients are taken, where that changes them
    trained: list[bool] = field(default_factory=list)  # marks of local trainings under such a rule

    @property
    def n(self) -> int | Tensor:
        """How many training samples this client has."""
        return self.train.n

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; server work knows it too, though it holds no sample."""
        return tuple(self.train.pool_x.shape[1:])

    @property
    def size(self) -> Tensor:
        """``n`` as a float tensor, ready to be a weight in a reply."""
        return torch.as_tensor(self.n, dtype=torch.float32, device=self.key.device)

    def keep(self, **tensors: Tensor) -> None:
        """Stays on the client until its next procedure reads ``me.state``; never uploaded."""
        self.kept.update(tensors)

    def keep_tree(self, name: str, tree: Tree) -> None:
        """As :meth:`keep`, for a whole tree; :meth:`tree` gives it back."""
        self.kept.update({f"{name}/{n}": t for n, t in tree.items()})

    def tree(self, name: str) -> Tree | None:
        """The tree kept under this name, or None on a client that has kept none yet."""
        kept = {n.removeprefix(f"{name}/"): t for n, t in self.state.items() if n.startswith(f"{name}/")}
        return kept or None

    def batches(
        self, *, size: int, epochs: int | None = None, steps: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled mini-batches: whole ``epochs``, or ``steps`` batches in as many epochs as they need.

        Different ``stream`` numbers give independent orders.
        """
        if (epochs is None) == (steps is None):
            raise ValueError(f"epochs={epochs} and steps={steps}: exactly one should be given")
        key = keys.fold_in(self.key, "batches", stream)
        shard, device = self.train, self.key.device
        if shard.ragged and steps is not None:
            yield from self._ragged_steps(key, size, steps)
            return
        length = shard.length
        if not length:
            return
        per_epoch = -(-length // size)
        total = steps if steps is not None else (epochs or 0) * per_epoch
        order = places = shard.rows
        for t in range(total):
            epoch, place = divmod(t, per_epoch)
            if place == 0:
                valid = shard.n if shard.ragged else None
                places = keys.permutation(keys.fold_in(key, epoch), length, valid)
                order = shard.rows[places]
            start, stop = place * size, min((place + 1) * size, length)
            w = (torch.arange(start, stop, device=device) < shard.n).float() if shard.ragged else None
            rows = order[start:stop]
            x, y = gather(shard.pool_x, rows), shard.pool_y[rows]
            yield Batch(x, y, w, key, (epoch, place), places=places[start:stop])

    def _ragged_steps(self, key: Key, size: int, steps: int) -> Iterator[Batch]:
        """The same batches when clients of one chunk need different numbers of epochs for ``steps``."""
        shard, device = self.train, self.key.device
        length, n = shard.length, torch.as_tensor(shard.n, device=device)
        per_epoch = -(-n // size)
        epochs = -(-steps // max(-(-self.smallest // size), 1))
        orders = torch.stack([keys.permutation(keys.fold_in(key, e), length, n) for e in range(epochs)])
        within = torch.arange(min(size, length), device=device)  # no batch holds more than the longest shard
        for t in range(steps):
            epoch, place = t // per_epoch, t % per_epoch
            positions = place * size + within
            order = orders.reshape(-1).gather(0, epoch * length + positions.clamp(max=length - 1))
            rows = shard.rows.gather(0, order)
            w = (positions < n).float()
            x, y = gather(shard.pool_x, rows), shard.pool_y[rows]
            # a step that each client takes is never padding alone
            yield Batch(x, y, w, key, (epoch, place), may_be_empty=False, places=order)
