"""Which rows clients hold as a rule, where a list of them all would be too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key


class Rule(Protocol):
    """Rows of one pool as a pure function of the client and the place among its samples."""

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        """Of each client in ``ids`` the sample at place ``within``, as broadcast."""
        ...

    def chosen(self, ids: Tensor) -> Rule:
        """The same rule for these clients alone, counted from 0."""
        ...


@dataclass(frozen=True)
class Shared:
    """The clients of a group hold the same rows."""

    rows: Tensor  # one group after another
    first: Tensor  # [G] where a group's rows begin
    group: Tensor  # [N] of each client

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        return self.rows[self.first[self.group[ids]] + within]

    def chosen(self, ids: Tensor) -> Shared:
        return replace(self, group=self.group[ids])


@dataclass(frozen=True)
class Drawn:
    """Client i draws at random, with replacement, from the pool's part of group i mod G."""

    key: Key
    first: Tensor  # [G] where a group's part begins
    sizes: Tensor  # [G] how many rows it has

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        group = ids % len(self.sizes)
        drawn = keys.fold_in(keys.fold_in(self.key, ids), within) & (2**62 - 1)
        return self.first[group] + drawn % self.sizes[group]

    def chosen(self, ids: Tensor) -> Chosen:
        return Chosen(self, ids)


@dataclass(frozen=True)
class Computed:
    """Somebody's own function."""

    function: Callable[[Tensor, Tensor], Tensor]

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        return torch.as_tensor(self.function(*torch.broadcast_tensors(ids, within)), dtype=torch.int64)

    def chosen(self, ids: Tensor) -> Chosen:
        return Chosen(self, ids)


@dataclass(frozen=True)
class Chosen:
    """Some clients of a rule, in another order."""

    rule: Rule
    ids: Tensor

    def at(self, ids: Tensor, within: Tensor) -> Tensor:
        return self.rule.at(self.ids[ids], within)

    def chosen(self, ids: Tensor) -> Chosen:
        return Chosen(self.rule, self.ids[ids])
