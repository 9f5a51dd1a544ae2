"""A part of a client's training data set aside on the client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client


def hold_out(me: Client, share: float, fold: int = 0) -> tuple[Client, Client]:
    """``(training, validation)``: this client with the rest of its training samples, and with the held-out ones.

    The split is the same in every round; another ``fold`` holds out others, until all were. Both parts have at least
    one sample; of a single sample they are equal.
    """
    shard, device = me.train, me.key.device
    length, n = shard.length, shard.n
    order = keys.permutation(keys.fold_in(keys.key(0).to(device), "hold out"), length, n if shard.ragged else None)
    # the counts only grow with n, so what the longest shard of a chunk needs is enough for all
    held, longest, fewest = held_out(n, share), held_out(length, share), held_out(me.smallest, share)
    if fold:
        place = torch.arange(length, device=device)
        order = order[torch.where(place < n, (place + fold * held) % _at_least_one(n), place)]
    rows = shard.rows[order]
    places = (n - held + torch.arange(longest, device=device)).clamp(min=0, max=length - 1)
    train = replace(shard, rows=rows[: max(length - longest, 1)], n=_at_least_one(n - held))
    valid = replace(shard, rows=rows.gather(0, places), n=held)
    rest = max(me.smallest - fewest, 1)
    return replace(me, train=train, smallest=rest), replace(me, train=valid, smallest=fewest)


def folds(me: Client, share: float) -> Iterator[tuple[Client, Client]]:
    """As many splits as it takes until every sample was held out once, or nearly so."""
    for fold in range(max(round(1.0 / share), 1)):
        yield hold_out(me, share, fold)


def held_out(n: Any, share: float) -> Any:
    """How many of ``n`` samples (an int or a tensor) are held out: ``share``, rounded down, and at least one."""
    return _at_least_one(n * round(share * 1000) // 1000)


def _at_least_one(n: Any) -> Any:
    return n.clamp(min=1) if isinstance(n, Tensor) else max(n, 1)
