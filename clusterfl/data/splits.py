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
from clusterfl.data.source import Samples, Source
from clusterfl.errors import ConfigError, DataError
from clusterfl.keys import Key

Array = npt.NDArray[Any]


class Pool(NamedTuple):
    """What clients draw from: the source's train part, or all of it where clients hold out their own test."""

    x: Samples
    y: Array
    free: Array  # rows that are not indicators


class Split(NamedTuple):
    """Rows of the pool per client, and of the test part where the split chose those too."""

    rows: list[Tensor]
    cluster: Array  # [N + U] whose shift each client sees
    truth: Array | None
    test: list[Tensor] | None = None  # rows of the source's test part; None: held out from rows, or balanced
    soft: bool = False
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the clients; empty: they have none of their own


def assign_clusters(clients: int, unseen: int, clusters: int, shares: tuple[float, ...] | None, key: Key) -> Array:
    """Each client's cluster, in random order; equal shares or as given, for trained and unseen alike."""
    weights = np.ones(clusters) if shares is None else np.asarray(shares)
    parts = []
    for name, n in (("train", clients), ("unseen", unseen)):
        counts = partition.apportion(weights, n, 1 if name == "train" else 0)
        order = keys.permutation(keys.fold_in(key, name), n).numpy()
        parts.append(np.repeat(np.arange(clusters), counts)[order])
    return np.concatenate(parts)


def _assign(config: DataConfig, key: Key, clients: int | None = None) -> Array:
    clients = config.clients if clients is None else clients
    key = keys.fold_in(key, "assign")
    return assign_clusters(clients, config.unseen, config.clusters, config.cluster_sizes, key)


def with_own_test(config: DataConfig, samples: int) -> int:
    """How many samples to draw for that many train samples, where the test samples are held out from them."""
    return samples if config.test == "balanced" else round(samples / (1 - config.test_fraction))


def domain_rows(domains: Array | None, cluster: int, rows: Array) -> Array:
    """The rows a cluster draws from: those of its own dataset, where several were joined."""
    if domains is None:
        return rows
    mine: Array = rows[domains[rows] == cluster % (int(domains.max()) + 1)]
    return mine


def split_clusters(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """Every cluster has its own copy of the pool, from which its clients draw without replacement."""
    cluster = _assign(config, key)
    rows, test = [torch.zeros(0)] * len(cluster), [torch.zeros(0)] * len(cluster)
    shared = repeated = 0
    for k in range(config.clusters):
        members = np.flatnonzero(cluster == k)
        mine = domain_rows(source.domains_train, k, pool.free)
        tests = domain_rows(source.domains_test, k, np.arange(len(source.y_test)))
        part = keys.fold_in(key, "cluster", k)
        samples = config.samples or len(mine) // len(members)
        if samples < LEAST:
            raise DataError(
                f"clients={len(members)} in one cluster should be at most {len(mine) // LEAST} for "
                f"{len(mine)} samples; set samples (clients then share them) or ask for fewer"
            )
        sizes = partition.client_sizes(
            len(members), samples, config.sizes, keys.fold_in(part, "sizes"), config.size_sigma
        )
        asked = [(pool.y[mine], sizes)]
        if config.test == "own":
            ratio = config.test_fraction / (1 - config.test_fraction)
            # where all is split, so is the test part, and it may be smaller than the fraction asks for
            most = len(tests) // len(members) if config.samples is None else len(tests)
            asked.append((source.y_test[tests], np.clip(np.rint(sizes * ratio), 1, max(most, 1)).astype(int)))
        drawn = partition.draw_mixed(
            asked, source.classes, config.alpha, part, per_class=config.alpha_per_class, reuse=config.reuse
        )
        for j, i in enumerate(members):
            rows[i] = torch.from_numpy(mine[drawn[0].rows[j].numpy()])
            test[i] = torch.from_numpy(tests[drawn[-1].rows[j].numpy()]) if config.test == "own" else test[i]
        shared, repeated = shared + drawn[0].shared, repeated + drawn[0].repeated
    notes = []
    if shared:
        notes.append(f"reuse: {shared} train samples are held by more than one client of their cluster")
    if repeated:
        notes.append(f"reuse: {repeated} times a client holds the same train sample again")
    if source.groups_train is not None:
        notes.append(f"the clients that {source.name} comes with are ignored; split='natural' keeps them")
    return Split(rows, cluster, cluster, test if config.test == "own" else None, notes=tuple(notes))


def _by_groups(config: DataConfig, source: Source, pool: Pool, key: Key, groups: int) -> tuple[list[Tensor], Array]:
    """All free rows, or as many at random as the clients' samples need, by groups of classes."""
    total, some = config.clients + config.unseen, pool.free
    if config.samples is not None:
        wanted = with_own_test(config, config.samples) * total
        if wanted > len(some):
            raise DataError(
                f"samples={config.samples} should be at most {config.samples * len(some) // wanted}: with "
                f"split={config.split!r} clients share none of the {len(some)} samples"
            )
        some = some[keys.choice(keys.fold_in(key, "some"), len(some), wanted).numpy()]
    assert config.alpha is not None  # the config has checked it
    rows, main = partition.by_class_groups(
        pool.y[some], total, groups, config.alpha, keys.fold_in(key, "groups"), source.classes
    )
    return [torch.from_numpy(some[r.numpy()]) for r in rows], main


def large_enough(config: DataConfig, split: Split) -> Split:
    """The split without the clients that were dealt fewer than ``min_samples``, as FedDSMIC's code has it."""
    keep = [i for i, rows in enumerate(split.rows) if len(rows) >= (config.min_samples or 0)]
    if len(keep) == len(split.rows):
        return split
    if not keep:
        raise DataError(f"min_samples={config.min_samples} should be small enough to leave a client; none has so many")
    note = f"min_samples: {len(split.rows) - len(keep)} of {len(split.rows)} clients have fewer and are left out"
    truth = None if split.truth is None else split.truth[keep]
    rows = [split.rows[i] for i in keep]
    return split._replace(rows=rows, cluster=split.cluster[keep], truth=truth, notes=(*split.notes, note))


def split_class_groups(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """FedEM's and FedDSMIC's mixtures: a client's truth is only its main group of classes."""
    rows, main = _by_groups(config, source, pool, key, config.clusters)
    note = "clients are mixtures: the true cluster is only the main group of classes"
    return large_enough(config, Split(rows, np.zeros(len(rows), dtype=np.int64), main, soft=True, notes=(note,)))


def split_dirichlet(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """The whole pool over all clients, class by class, as in the code of CFL (Sattler et al.)."""
    rows, _ = _by_groups(config, source, pool, key, source.classes)
    cluster = _assign(config, key)
    return large_enough(config, Split(rows, cluster, cluster))


def split_natural(config: DataConfig, source: Source, pool: Pool, key: Key) -> Split:
    """One client per writer, person or device, of those with enough samples."""
    groups = source.groups_train
    if groups is None:
        raise ConfigError(f"split='natural' should have a source with clients of its own, not {source.name!r}")
    members = _rows_by_group(groups, pool.free)
    tests = None
    if config.test == "own" and source.groups_test is not None:
        tests = _rows_by_group(source.groups_test, np.arange(len(source.groups_test)))
    eligible = [g for g, rows in members.items() if len(rows) >= LEAST and (tests is None or g in tests)]
    total = config.clients + config.unseen if config.clients else len(eligible)
    if total > len(eligible) or config.unseen >= total:
        raise DataError(
            f"clients={config.clients} and unseen={config.unseen} should together be at most {len(eligible)}, the "
            f"clients of {source.name!r} with {LEAST} or more samples; clients=0 takes all"
        )
    most = config.samples
    if most is not None and tests is None:
        most = with_own_test(config, most)
    order = (
        range(len(eligible)) if source.own else keys.permutation(keys.fold_in(key, "natural"), len(eligible)).tolist()
    )
    chosen = [eligible[i] for i in order[:total]]
    rows = []
    for g in chosen:
        shuffled = keys.permutation(keys.fold_in(key, "order", g), len(members[g]))
        whole = source.own and tests is not None and most is None  # nothing is to be chosen: its own order
        rows.append(torch.from_numpy(members[g]) if whole else torch.from_numpy(members[g])[shuffled][:most])
    truth = None if source.group_truth is None else source.group_truth[chosen]
    cluster = np.zeros(total, dtype=np.int64)
    if config.shift != "none":
        truth = cluster = _assign(config, key, total - config.unseen)
    test = [torch.from_numpy(tests[g]) for g in chosen] if tests is not None else None
    names = () if source.group_names is None else tuple(source.group_names[g] for g in chosen)
    notes = _left_out(source, eligible, total, tests is not None) if source.own else ()
    return Split(rows, cluster, truth, test, notes=notes, names=names)


def _left_out(source: Source, eligible: list[int], total: int, tested: bool) -> tuple[str, ...]:
    """Which of a user's clients take no part, and why."""
    assert source.group_names is not None
    small = [name for g, name in enumerate(source.group_names) if g not in set(eligible)]
    few = ", ".join(small[:10]) + (", …" if len(small) > 10 else "")
    why = f"{LEAST} train samples and a test sample" if tested else f"{LEAST} samples"
    notes = [f"left out, without {why}: {few} ({len(small)} of {len(source.group_names)})"] if small else []
    if total < len(eligible):
        notes.append(f"the first {total} of {len(eligible)} clients are used; data.clients=0 uses all of them")
    return tuple(notes)


def _rows_by_group(groups: Array, rows: Array) -> dict[int, Array]:
    order = rows[np.argsort(groups[rows], kind="stable")]
    names, starts = np.unique(groups[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))


SPLITS: dict[str, Callable[[DataConfig, Source, Pool, Key], Split]] = {
    "clusters": split_clusters,
    "dirichlet": split_dirichlet,
    "class_groups": split_class_groups,
    "natural": split_natural,
}
