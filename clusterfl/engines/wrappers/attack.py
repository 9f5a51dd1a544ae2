"""Clients that lie, on purpose: the ``[attack]`` table of a config.

Attackers are chosen by the run's key. ``label-flip`` changes their training labels (y becomes C - 1 - y) and
leaves the rest to their honest training; the others falsify the trainable parameters that they upload,
relative to what they were sent. What else a reply holds (a cluster id, a size) stays honest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers.updates import Changing, Parts, norms, put, scaled, updates
from clusterfl.errors import ConfigError
from clusterfl.fields import option
from clusterfl.keys import Key


@dataclass(frozen=True)
class AttackConfig:
    """The ``[attack]`` table."""

    kind: Literal["none", "label-flip", "sign-flip", "gaussian", "scale"] = option("none", "how attackers lie")
    share: float = option(0.2, "of the training clients")
    where: Literal["spread", "one-cluster"] = option("spread", "over all true clusters, or one after another")
    scale: float = option(3.0, "length of a false update, in honest ones; has no meaning for label-flip")

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share} should be above 0 and below 1")
        if not self.scale > 0.0:
            raise ValueError(f"scale={self.scale} should be above 0")

    @property
    def on(self) -> bool:
        return self.kind != "none"


def attackers(config: AttackConfig, population: Population, key: Key) -> Tensor:
    """The ids of those who lie, in ascending order."""
    if not config.on:
        return torch.zeros(0, dtype=torch.int64)
    n = population.clients
    order = keys.permutation(key, n).tolist()
    truth = None if population.truth is None else population.truth.tolist()
    if config.where == "one-cluster":
        if truth is None:
            raise ConfigError("where='one-cluster' should be 'spread' where no true clusters are known")
        turn = {k: j for j, k in enumerate(dict.fromkeys(truth[i] for i in order))}
        order.sort(key=lambda i: turn[truth[i]])
    elif truth is not None:  # one of each cluster, then a second of each, …
        place = _place_in_group(truth[i] for i in order)
        order = [i for _, i in sorted(zip(place, order, strict=True), key=lambda pair: pair[0])]
    return torch.tensor(sorted(order[: max(1, round(config.share * n))]), dtype=torch.int64)


def _place_in_group(labels: Iterable[int]) -> list[int]:
    seen: dict[int, int] = {}
    places = []
    for label in labels:
        places.append(seen.get(label, 0))
        seen[label] = places[-1] + 1
    return places


def flip_labels(population: Population, ids: Tensor) -> Population:
    """The same clients, but those in ``ids`` hold y' = C - 1 - y as their training labels, after a drift too."""
    if population.regression:
        raise ConfigError("kind='label-flip' should be another attack where targets are numbers: it swaps classes")
    train = population.train
    lies = torch.zeros(len(train), dtype=torch.bool)
    lies[ids] = True
    mine = lies.repeat_interleave(train.sizes)
    # honest clients may share these samples, so the liars get copies
    used, inverse = torch.unique(train.listed[mine], return_inverse=True)
    rows = train.listed.clone()
    rows[mine] = len(train.y) + inverse
    x = torch.cat([train.x, train.x[used]])
    y = torch.cat([train.y, population.classes - 1 - train.y[used]])
    drift = population.drift and (population.drift[0], flip_labels(population.drift[1], ids))
    return replace(population, train=Shards(x, y, rows, train.offsets), drift=drift)


class Attack(Changing):
    """An engine some of whose clients falsify the models they send."""

    def __init__(self, inner: BaseEngine, config: AttackConfig, ids: Tensor) -> None:
        super().__init__(inner)
        self.config, self.ids = config, ids

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        ids = call.ids[chunk.positions]
        lies = torch.isin(ids, self.ids)
        if not bool(lies.any()):
            return chunk
        start, moves = updates(self.task, call, chunk)
        return put(chunk, start, self._false(call, ids, moves), lies) if moves else chunk

    def _false(self, call: Call, ids: Tensor, moves: Parts) -> Parts:
        scale = self.config.scale
        if self.config.kind != "gaussian":
            sign = -1.0 if self.config.kind == "sign-flip" else 1.0
            return scaled(moves, torch.full((len(ids),), sign * scale))
        noise = {at: torch.stack([self._draw(call, i, at, t[0]) for i in ids.tolist()]) for at, t in moves.items()}
        return scaled(noise, scale * norms(moves) / norms(noise))

    def _draw(self, call: Call, client: int, at: tuple[str, str], like: Tensor) -> Tensor:
        return keys.normal(keys.fold_in(call.client_key(client), "attack", *at), *like.shape).to(like.dtype)
