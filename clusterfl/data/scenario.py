"""A population from a config: which clients there are, what each one holds, and the truth about them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data import partition
from clusterfl.data.config import DataConfig
from clusterfl.data.population import Population, Shards
from clusterfl.data.shift import Shift, make_shift
from clusterfl.data.sources import Source, load_source, to_float
from clusterfl.data.splits import SPLITS, Pool
from clusterfl.errors import DataError
from clusterfl.keys import Key

__all__ = ["DataConfig", "build", "describe"]

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]


def hold_out(rows: list[Tensor], share: float) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's rows (in random order already) in a train and a test part, neither of them empty."""
    cuts = [min(max(round(share * len(r)), 1), len(r) - 1) for r in rows]
    return [r[c:] for r, c in zip(rows, cuts, strict=True)], [r[:c] for r, c in zip(rows, cuts, strict=True)]


def gather(
    x: Array, y: Array, rows: list[Tensor], cluster: Array, shift: Shift, normalize: str, levels: float | None
) -> Shards:
    """Shards in which every row is kept once per cluster that uses it, under that cluster's shift."""
    sizes = torch.tensor([len(r) for r in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    k_clusters = len(shift.angles)
    virtual = torch.cat(rows) + torch.from_numpy(cluster).repeat_interleave(sizes) * len(y)
    used = torch.zeros(k_clusters * len(y), dtype=torch.bool)
    used[virtual] = True
    place = used.cumsum(0) - 1
    xs, ys = [], []
    for k in range(k_clusters):
        mine = used[k * len(y) : (k + 1) * len(y)].numpy()
        if mine.any():
            xk, yk = shift.apply(to_float(x[mine], normalize, levels), torch.from_numpy(y[mine]), k)
            xs.append(xk)
            ys.append(yk)
    return Shards(torch.cat(xs), torch.cat(ys), place[virtual], offsets)


def _take_indicators(config: DataConfig, x: Array, y: Array, classes: int, key: Key) -> tuple[Array, Array]:
    """Rows of the public samples, equally many of each class, and the rows left for clients."""
    if not config.indicators:
        return np.zeros(0, dtype=np.int64), np.arange(len(y))
    here = np.unique(y).tolist()
    taken = partition.balanced(y, config.indicators * len(here), here, keys.fold_in(key, "indicators"))
    if len(taken) < config.indicators * len(here):
        most = len(taken) // len(here)
        raise DataError(f"indicators={config.indicators} should be at most {most}, all of the rarest class")
    return taken, np.setdiff1d(np.arange(len(y)), taken)


def _balanced_tests(config: DataConfig, source: Source, cluster: Array, key: Key) -> list[Tensor]:
    """One class-balanced set of test rows per cluster, the same for all its clients."""
    wanted = config.test_samples or len(source.y_test)
    here = np.unique(source.y_test).tolist()
    sets = [
        torch.from_numpy(partition.balanced(source.y_test, wanted, here, keys.fold_in(key, "test", k)))
        for k in range(config.clusters)
    ]
    if not len(sets[0]):
        raise DataError(f"test_samples={config.test_samples} should be at least {len(here)}, one per class")
    return [sets[k] for k in cluster.tolist()]


def build(config: DataConfig, key: Key) -> Population:
    """The population that the config describes: the same key gives the same data, bit for bit."""
    config = config.resolved()
    source = load_source(config.source, config.root)
    x, y, groups = source.x_train, source.y_train, source.groups_train
    if config.test == "own" and config.split in ("dirichlet", "class_groups"):
        # these papers pool both parts and let each client hold out its own test samples
        x, y = np.concatenate([x, source.x_test]), np.concatenate([y, source.y_test])
        groups = None
    taken, free = _take_indicators(config, x, y, source.classes, key)
    split = SPLITS[config.split](config, source, Pool(x, y, groups, free), key)
    shift = make_shift(
        config.shift,
        config.clusters if config.has_clusters else 1,
        source.classes,
        keys.fold_in(key, "shift"),
        config.angles,
    )
    rows, test, x_test, y_test = split.rows, split.test, source.x_test, source.y_test
    if config.test == "balanced":
        test = _balanced_tests(config, source, split.cluster, key)
    elif test is None:
        rows, test = hold_out(rows, config.test_fraction)
        x_test, y_test = x, y
    for note in split.notes:
        log.info("%s: %s", source.name, note)
    public = to_float(x[taken], config.normalize, source.levels), torch.from_numpy(y[taken])
    return Population(
        gather(x, y, rows, split.cluster, shift, config.normalize, source.levels),
        gather(x_test, y_test, test, split.cluster, shift, config.normalize, source.levels),
        clients=len(rows) - config.unseen,
        classes=source.classes,
        name=describe(config),
        truth=None if split.truth is None else torch.from_numpy(split.truth),
        soft_truth=split.soft,
        indicators=public if config.indicators else None,
        notes=split.notes,
    )


def describe(config: DataConfig) -> str:
    """A short name for plots and tables."""
    parts = [config.source]
    if config.split != "clusters":
        parts.append(config.split)
    if config.has_clusters:
        parts.append(f"{config.clusters} clusters by {config.resolved_shift}")
    if config.alpha is not None:
        parts.append(f"alpha {config.alpha:g}")
    return ", ".join(parts)
