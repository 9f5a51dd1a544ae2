"""Who gets which rows of the pool: one function per way to split, all with the same signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data import partition
from clusterfl.data.config import DataConfig
from clusterfl.data.partition import LEAST
from clusterfl.data.sources import Source
from clusterfl.errors import ConfigError, DataError
from clusterfl.keys import Key

Array = npt.NDArray[Any]


class Split(NamedTuple):
    """Rows of the pool per client, and of the test part where the split chose those too."""

    rows: list[Tensor]
    cluster: Array  # [N + U] whose shift each client sees
    truth: Array | None
    test: list[Tensor] | None = None  # rows of the source's test part
    soft: bool = False
    notes: tuple[str, ...] = ()


class Pool(NamedTuple):
    """What clients draw from: the source's train part, or all of it where clients hold out their own test."""

    x: Array
    y: Array
    groups: Array | None
    free: Array  # rows that are not indicators


def assign_clusters(
    clients: int, unseen: int, clusters: int, shares: tuple[float, ...] | None, key: Key
) -> Array:
    """Each client's cluster, in random order; equal shares or as given, for trained and unseen alike."""
    weights = np.ones(clusters) if shares is None else np.asarray(shares)
    parts = []
    for name, n in (("train", clients), ("unseen", unseen)):
        counts = partition.apportion(weights, n, 1 if name == "train" else 0)
        order = keys.permutation(keys.fold_in(key, name), n).numpy()
        parts.append(np.repeat(np.arange(clusters), counts)[order])
    return np.concatenate(parts)


def _clusters_of(config: DataConfig, key: Key) -> Array:
    return assign_clusters(
        config.clients, config.unseen, config.clusters, config.cluster_sizes, keys.fold_in(key, "assign")
    )


def _split_clusters(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """Every cluster has its own copy of the pool, from which its clients draw without replacement."""
    cluster = _clusters_of(config, key)
    rows, test = [torch.zeros(0)] * len(cluster), [torch.zeros(0)] * len(cluster)
    shared = repeated = 0
    for k in range(config.clusters):
        members = np.flatnonzero(cluster == k)
        if not len(members):
            continue
        part = keys.fold_in(key, "cluster", k)
        samples = config.samples or len(pool.free) // len(members)
        if samples < LEAST:
            raise DataError(
                f"clients={len(members)} in one cluster should be at most {len(pool.free) // LEAST} for "
                f"{len(pool.free)} samples; set samples (clients then share them) or ask for fewer"
            )
        sizes = partition.client_sizes(
            len(members), samples, config.sizes, keys.fold_in(part, "sizes"), config.size_sigma
        )
        asked = [(pool.y[pool.free], sizes)]
        if config.test == "own":
            most = len(source.y_test) // len(members) if config.samples is None else len(source.y_test)
            ratio = config.test_fraction / (1 - config.test_fraction)
            asked.append((source.y_test, np.clip(np.rint(sizes * ratio), 1, max(most, 1)).astype(np.int64)))
        drawn = partition.draw_mixed(
            asked, source.classes, config.alpha, part, per_class=config.alpha_per_class, reuse=config.reuse
        )
        free = torch.from_numpy(pool.free)
        for j, i in enumerate(members):
            rows[i] = free[drawn[0].rows[j]]
            if config.test == "own":
                test[i] = drawn[1].rows[j]
        shared, repeated = shared + drawn[0].shared, repeated + drawn[0].repeated
    notes = []
    if shared:
        notes.append(f"reuse: {shared} train samples are held by more than one client of their cluster")
    if repeated:
        notes.append(f"reuse: {repeated} times a client holds the same train sample again")
    return Split(rows, cluster, cluster, test if config.test == "own" else None, notes=tuple(notes))


def _some(config: DataConfig, pool: Pool, key: Key) -> Array:
    """All free rows, or as many at random as the clients' samples and their own tests need."""
    if config.samples is None:
        return pool.free
    each = config.samples if config.test == "balanced" else round(config.samples / (1 - config.test_fraction))
    wanted = each * (config.clients + config.unseen)
    if wanted > len(pool.free):
        raise DataError(
            f"samples={config.samples} should be at most {config.samples * len(pool.free) // wanted}: with "
            f"split={config.split!r} clients share none of the {len(pool.free)} samples"
        )
    chosen: Array = pool.free[keys.choice(keys.fold_in(key, "some"), len(pool.free), wanted).numpy()]
    return chosen


def _split_groups(
    config: DataConfig, source: Source, pool: Pool, key: Key, groups: int
) -> tuple[list[Tensor], Array]:
    some, total = _some(config, pool, key), config.clients + config.unseen
    assert config.alpha is not None  # the config has checked it
    rows, main = partition.by_class_groups(
        pool.y[some], total, groups, config.alpha, keys.fold_in(key, "groups"), source.classes
    )
    chosen = torch.from_numpy(some)
    return [chosen[r] for r in rows], main


def _split_class_groups(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    rows, main = _split_groups(config, source, pool, key, config.clusters)
    return Split(
        rows,
        np.zeros(len(rows), dtype=np.int64),
        main,
        soft=True,
        notes=("clients are mixtures: the true cluster is only the main group of classes",),
    )


def _split_dirichlet(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """The whole pool over all clients, class by class, as in the code of CFL (Sattler et al.)."""
    rows, _ = _split_groups(config, source, pool, key, source.classes)
    cluster = _clusters_of(config, key)
    return Split(rows, cluster, cluster)


def _split_natural(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """One client per writer, person or device, of those with enough samples."""
    if pool.groups is None:
        raise ConfigError(
            f"split='natural' should have a source with clients of its own, not {source.name!r}"
        )
    members = {g: pool.free[pool.groups[pool.free] == g] for g in np.unique(pool.groups[pool.free])}
    tests = None
    if config.test == "own" and source.groups_test is not None:
        tests = {g: np.flatnonzero(source.groups_test == g) for g in members}
    able = [g for g, rows in members.items() if len(rows) >= LEAST and (tests is None or len(tests[g]))]
    total = config.clients + config.unseen if config.clients else len(able)
    if total > len(able) or config.unseen >= total:
        raise DataError(
            f"clients={config.clients} and unseen={config.unseen} should together be at most {len(able)}, "
            f"the natural clients of {source.name!r} with {LEAST} or more samples"
        )
    chosen = keys.permutation(keys.fold_in(key, "natural"), len(able)).tolist()[:total]
    rows = []
    for i in chosen:
        mine = members[able[i]]
        order = keys.permutation(keys.fold_in(key, "order", i), len(mine))
        rows.append(torch.from_numpy(mine)[order][: config.samples])
    test = [torch.from_numpy(tests[able[i]]) for i in chosen] if tests is not None else None
    cluster = assign_clusters(
        total - config.unseen,
        config.unseen,
        config.clusters,
        config.cluster_sizes,
        keys.fold_in(key, "assign"),
    )
    return Split(rows, cluster, cluster if config.has_clusters else None, test)


SPLITS: dict[str, Callable[[DataConfig, Source, Pool, Key], Split]] = {
    "clusters": _split_clusters,
    "dirichlet": _split_dirichlet,
    "class_groups": _split_class_groups,
    "natural": _split_natural,
}
