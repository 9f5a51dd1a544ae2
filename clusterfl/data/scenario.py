"""A population from a config: which clients there are, what each one holds, and the truth about them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data import partition, synthetic
from clusterfl.data.config import DataConfig
from clusterfl.data.population import Population
from clusterfl.data.registry import load_source
from clusterfl.data.scales import notes_on_scales
from clusterfl.data.shards import PIECE, Shards
from clusterfl.data.shift import Shift, make_shift
from clusterfl.data.source import Samples, Source, to_float
from clusterfl.data.splits import SPLITS, Pool, assign_clusters, domain_rows, with_own_test
from clusterfl.data.user_data import Reading, is_function
from clusterfl.data.user_tables import Categories
from clusterfl.errors import DataError
from clusterfl.keys import Key

__all__ = ["DataConfig", "build", "describe"]

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]


def hold_out(rows: list[Tensor], share: float) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's rows (in random order already) in a train and a test part, neither of them empty, or all in the
    first where nothing is held out."""
    if not share:
        return rows, [r[:0] for r in rows]
    cuts = [min(max(round(share * len(r)), 1), len(r) - 1) for r in rows]
    return [r[c:] for r, c in zip(rows, cuts, strict=True)], [r[:c] for r, c in zip(rows, cuts, strict=True)]


def gather(
    x: Samples, y: Array, rows: list[Tensor], cluster: Array, shift: Shift, normalize: str, levels: float | None
) -> Shards:
    """Shards in which every row is kept once per cluster that uses it, under that cluster's shift."""
    sizes = torch.tensor([len(r) for r in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    k_clusters = len(shift.angles)
    virtual = torch.cat(rows)
    for some in torch.arange(len(rows)).split(1000):  # in place, a few clients at a time: there may be millions of rows
        first = torch.from_numpy(cluster * len(y))[some].repeat_interleave(sizes[some])
        virtual[offsets[some[0]] : offsets[some[-1] + 1]] += first
    used = torch.zeros(k_clusters * len(y), dtype=torch.bool)
    for piece in virtual.split(PIECE):
        used[piece] = True
    place = used.cumsum(0) - 1
    total = int(place[-1]) + 1
    dtype = torch.float32 if y.dtype.kind == "f" else torch.int64
    out_x, out_y = torch.empty(total, *x.shape[1:]), torch.empty(total, *y.shape[1:], dtype=dtype)
    start = 0
    for k in range(k_clusters):
        mine = used[k * len(y) : (k + 1) * len(y)].numpy()
        end = start + int(mine.sum())
        if end > start:
            xk, yk = shift.apply(to_float(x[mine], normalize, levels), torch.from_numpy(y[mine]), k)
            out_x[start:end], out_y[start:end] = xk, yk
        start = end
    for piece in virtual.split(PIECE):
        piece.copy_(place[piece])
    return Shards(out_x, out_y, virtual, offsets)


def _take_indicators(config: DataConfig, y: Array, key: Key) -> tuple[Array, Array]:
    """Rows of the public samples, equally many of each class, and the rows left for clients."""
    if not config.indicators:
        return np.zeros(0, dtype=np.int64), np.arange(len(y))
    here = np.unique(y).tolist()
    taken = partition.balanced(y, config.indicators * len(here), here, keys.fold_in(key, "indicators"))
    if len(taken) < config.indicators * len(here):
        most = len(taken) // len(here)
        raise DataError(f"indicators={config.indicators} should be at most {most}, all of the rarest class")
    return taken, np.setdiff1d(np.arange(len(y)), taken)


def _balanced_tests(config: DataConfig, source: Source, clusters: list[int], key: Key) -> list[Tensor]:
    """One class-balanced set of test rows per cluster, the same for all its clients."""
    if not len(source.y_test):
        raise DataError(f"test='balanced' should be 'own' with {source.name!r}, which has no test part")
    sets = []
    for k in clusters:
        rows = domain_rows(source.domains_test, k, np.arange(len(source.y_test)))
        y = source.y_test[rows]
        here = np.unique(y).tolist()
        chosen = partition.balanced(y, config.test_samples or len(y), here, keys.fold_in(key, "test", k))
        if not len(chosen):
            raise DataError(f"test_samples={config.test_samples} should be at least {len(here)}, one per class")
        sets.append(torch.from_numpy(rows[chosen]))
    return sets


def columns_of(
    config: DataConfig,
) -> tuple[str | None, str | None, tuple[str, ...] | None, tuple[str, ...] | None]:
    """The columns of a table of one's own: of clients, of labels, of features, and of words among these."""
    return config.client_column, config.label_column, config.feature_columns, config.categorical


def _source(config: DataConfig, key: Key, reading: Reading) -> Source:
    if not synthetic.is_synthetic(config.source):
        return load_source(config.source, config.root, reading)
    key = keys.fold_in(key, "synthetic")
    if config.split != "natural":
        return synthetic.pooled(config.source, key)
    if not config.clients:
        raise DataError("clients=0 should be a number of tasks with a synthetic source")
    total = config.clients + config.unseen
    cluster = assign_clusters(config.clients, config.unseen, config.clusters, config.cluster_sizes, key)
    planted = synthetic.is_planted(config.source)
    samples = synthetic.PLANTED_SAMPLES if planted and config.samples is None else config.samples
    sizes = synthetic.leaf_sizes(total, keys.fold_in(key, "sizes"))
    if samples is not None:
        each = with_own_test(config, samples)
        sizes = partition.client_sizes(total, each, config.sizes, keys.fold_in(key, "sizes"), config.size_sigma)
    if planted:
        noise = synthetic.PLANTED_NOISE if config.noise is None else config.noise
        return synthetic.plant(config.source, cluster, sizes, key, noise)
    return synthetic.generate(config.source, cluster, sizes, key)


def _check_targets(config: DataConfig, source: Source, regression: bool) -> None:
    """Targets are what the loss takes, and nothing is asked that needs classes where there are none."""
    if regression and source.classes:
        raise DataError(f"source={config.source!r} should have targets that are numbers for this loss, but has classes")
    if source.classes:
        return
    if not regression:
        raise DataError(f"source={config.source!r} has targets that are numbers: set loss = 'mse' in [task]")
    labels = config.shift in ("swap_labels", "permute_labels", "rotate+swap")
    for name, wrong in (("split", config.split != "natural"), ("shift", labels), ("indicators", config.indicators)):
        if wrong:
            value = getattr(config, name)
            raise DataError(f"{name}={value!r} goes by classes and should be unset where targets are numbers")
    if config.test == "balanced":
        raise DataError("test='balanced' goes by classes and should be 'own' where targets are numbers")


def _drift(population: Population, config: DataConfig, key: Key) -> Population:
    """The population after drift: chosen clients, some of each cluster, hold what one of another cluster held.

    Clients trade places, so nothing is drawn anew and both populations share one pool.
    """
    assert population.truth is not None and config.drift_round is not None
    truth = population.truth[: population.clients].numpy()
    movers = []
    for k in np.unique(truth):
        mine = np.flatnonzero(truth == k)
        order = keys.permutation(keys.fold_in(key, "drift", int(k)), len(mine)).numpy()
        movers.append(mine[order][: max(round(config.drift_share * len(mine)), 1)])
    largest = max(range(len(movers)), key=lambda j: len(movers[j]))
    others = sum(len(m) for j, m in enumerate(movers) if j != largest)
    movers[largest] = movers[largest][:others]  # so that everyone finds a place in another cluster
    line = np.concatenate(movers)
    place = np.arange(len(population.train))
    place[line] = np.roll(line, -max(len(m) for m in movers))
    after = replace(
        population,
        train=population.train.select(torch.from_numpy(place)),
        test=population.test.select(torch.from_numpy(place)),
        truth=population.truth[place],
    )
    return replace(population, drift=(config.drift_round, after))


def build(
    config: DataConfig,
    key: Key,
    *,
    classes: tuple[str, ...] | None = None,
    categories: Categories | None = None,
    regression: bool = False,
    labelled: bool = True,
) -> Population:
    """The population that the config describes: the same key gives the same data, bit for bit.

    ``classes`` are the names that labels of own data must have, and ``categories`` the words that its columns may
    hold, where an earlier run has learnt them.
    ``regression``: targets are numbers, not classes. Without ``labelled`` own data is read as samples alone.
    """
    config = config.resolved()
    source = _source(config, key, Reading(*columns_of(config), classes, categories, regression, labelled))
    _check_targets(config, source, regression)
    x, y = source.x_train, source.y_train
    if config.test == "own" and config.split in ("dirichlet", "class_groups"):
        # these papers pool both parts and let each client hold out its own test samples
        x, y = source.both_parts()
    taken, free = _take_indicators(config, y, key)
    split = SPLITS[config.split](config, source, Pool(x, y, free), key)
    shift = make_shift(
        config.shift,
        max(int(split.cluster.max()) + 1, config.clusters if config.shift != "none" else 1),
        source.classes,
        keys.fold_in(key, "shift"),
        config.angles,
    )
    rows, test, x_test, y_test = split.rows, split.test, source.x_test, source.y_test
    balanced, shift_of = config.test == "balanced", split.cluster
    if balanced:  # one set for each cluster
        shift_of, group = np.unique(split.cluster, return_inverse=True)
        test = _balanced_tests(config, source, shift_of.tolist(), key)
    elif test is None:
        rows, test = hold_out(rows, config.test_fraction if labelled else 0.0)  # without labels nothing is measured
        if source.own:
            rows, test = ([r.sort().values for r in side] for side in (rows, test))
        x_test, y_test = x, y
    notes = split.notes
    if source.own and isinstance(x, np.ndarray):
        notes = (*notes, *notes_on_scales(x, source.feature_names, y if regression else None))
    for note in notes:
        log.info("%s: %s", source.name, note)
    public = to_float(x[taken], config.normalize, source.levels), torch.from_numpy(y[taken])
    tests = gather(x_test, y_test, test, shift_of, shift, config.normalize, source.levels)
    population = Population(
        gather(x, y, rows, split.cluster, shift, config.normalize, source.levels),
        tests.shared_by(torch.from_numpy(group)) if balanced else tests,
        clients=len(rows) - config.unseen,
        classes=source.classes,
        name=describe(config),
        truth=None if split.truth is None else torch.from_numpy(split.truth),
        soft_truth=split.soft,
        indicators=public if config.indicators else None,
        notes=notes,
        names=split.names,
        class_names=source.class_names,
        feature_names=source.feature_names,
        categories=source.categories,
        pixels=None if source.levels is None else (source.levels, config.normalize),
    )
    return population if config.drift_round is None else _drift(population, config, key)


def describe(config: DataConfig) -> str:
    """A short name for plots and tables."""
    config = config.resolved()
    parts = [config.source.rpartition("/")[2] if is_function(config.source) else config.source]
    if config.split != "clusters":
        parts.append(config.split.replace("_", " "))
    if config.shift != "none":
        parts.append(f"{config.clusters} clusters by {config.shift}")
    if config.alpha is not None:
        parts.append(f"alpha {config.alpha:g}")
    if config.drift_round is not None:
        parts.append(f"drift at round {config.drift_round}")
    return ", ".join(parts)
