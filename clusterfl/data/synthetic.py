"""LEAF's Synthetic: tasks whose true linear models gather around several centres.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, data/synthetic. Its published code
normalises the softmax over a task's samples where the paper has classes; every task then has labels of most
classes, and a linear model of all clusters fits badly. "synthetic" does as that code does, "synthetic_argmax"
as the paper says: the label is the largest logit, and most tasks have one or two classes. A task is a client
where the split is natural; any other split deals out the samples of many tasks of one cluster.

"linear-regression" plants one linear map per cluster, as IFCA's own synthetic study does (Ghosh et al., 2020,
section 6.1): its targets are numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl import keys
from clusterfl.data.source import Source
from clusterfl.errors import ConfigError
from clusterfl.keys import Key

Array = npt.NDArray[Any]
PLANTED = "linear-regression"
NAMES = ("synthetic", "synthetic_argmax", PLANTED)
PLANTED_SAMPLES = 100  # per client, where the config does not say
PLANTED_NOISE = 0.1
POOLED_TASKS = 1000  # as LEAF's own instructions have it


def is_synthetic(name: str) -> bool:
    return name.partition(":")[0] in NAMES


def is_planted(name: str) -> bool:
    """Whether its targets are numbers."""
    return name.partition(":")[0] == PLANTED


def shape_of(name: str) -> tuple[int, int]:
    """Dimensions and classes: "synthetic" has 60 and 10, "synthetic:20x5" has 20 and 5. Of planted maps the inputs and
    outputs: "linear-regression" has 20 and 1, "linear-regression:50x3" has 50 and 3."""
    kind, _, given = name.partition(":")
    planted = kind == PLANTED
    if not given:
        return (20, 1) if planted else (60, 10)
    dims, _, outputs = given.partition("x")
    outputs = outputs or ("1" if planted else "")
    fewest = 1 if planted else 2
    if not (dims.isdecimal() and outputs.isdecimal() and int(dims) > 0 and int(outputs) >= fewest):
        words = "DIMS or DIMSxOUTPUTS, for example linear-regression:20" if planted else "DIMSxCLASSES, for example "
        raise ConfigError(f"source={name!r} should end in {words}{'' if planted else 'synthetic:60x10'}")
    return int(dims), int(outputs)


def leaf_sizes(tasks: int, key: Key) -> Array:
    """LEAF's sizes: log-normal(3, 2) plus 5, at most 1,000."""
    draws = keys.numpy_rng(key).lognormal(3.0, 2.0, tasks)
    return np.minimum(draws.astype(np.int64) + 5, 1000)


def generate(name: str, clusters: Array, sizes: Array, key: Key) -> Source:
    """One natural client per task: task i belongs to ``clusters[i]`` and has ``sizes[i]`` samples."""
    (dims, classes), k_clusters = shape_of(name), int(clusters.max()) + 1
    rng = keys.numpy_rng(keys.fold_in(key, "shared"))
    q = rng.normal(size=(dims + 1, classes, k_clusters))
    centres = [rng.normal(rng.normal(), 1.0, k_clusters) for _ in range(k_clusters)]
    spread = np.arange(1, dims + 1) ** -0.6  # the covariance is diagonal, i ** -1.2
    xs, ys = [], []
    for i, (k, n) in enumerate(zip(clusters.tolist(), sizes.tolist(), strict=True)):
        rng = keys.numpy_rng(keys.fold_in(key, "task", i))
        mean = rng.normal(rng.normal(), 1.0, dims)
        x = mean + rng.normal(size=(n, dims)) * spread
        w = q @ rng.normal(centres[k], 0.1)
        logits = w[0] + x @ w[1:] + rng.normal(0.0, 0.1, (n, classes))
        if name.partition(":")[0] == "synthetic":
            logits = logits - np.logaddexp.reduce(logits, axis=0)
        xs.append(x.astype(np.float32))
        ys.append(logits.argmax(1))
    x, y = np.concatenate(xs), np.concatenate(ys).astype(np.int64)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return Source(name, x, y, x[:0], y[:0], classes, groups_train=groups, group_truth=np.asarray(clusters), levels=None)


def plant(name: str, clusters: Array, sizes: Array, key: Key, noise: float) -> Source:
    """Client i has y = <x, map of its cluster> + noise, with normal x and maps of zeros and ones scaled to length 1."""
    (dims, outputs), k_clusters = shape_of(name), int(clusters.max()) + 1
    rng = keys.numpy_rng(keys.fold_in(key, "maps"))
    maps = rng.integers(0, 2, (k_clusters, dims, outputs)).astype(np.float64)
    maps /= np.maximum(np.linalg.norm(maps, axis=1, keepdims=True), 1.0)
    xs, ys = [], []
    for i, (k, n) in enumerate(zip(clusters.tolist(), sizes.tolist(), strict=True)):
        rng = keys.numpy_rng(keys.fold_in(key, "client", i))
        x = rng.normal(size=(n, dims))
        xs.append(x.astype(np.float32))
        ys.append((x @ maps[k] + noise * rng.normal(size=(n, outputs))).astype(np.float32))
    x, y = np.concatenate(xs), np.concatenate(ys)
    y = y[:, 0] if outputs == 1 else y
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return Source(name, x, y, x[:0], y[:0], 0, groups_train=groups, group_truth=np.asarray(clusters), levels=None)


def pooled(name: str, key: Key) -> Source:
    """The samples of LEAF's 1,000 tasks around one centre, as one dataset without clients."""
    source = generate(name, np.zeros(POOLED_TASKS, np.int64), leaf_sizes(POOLED_TASKS, keys.fold_in(key, "sizes")), key)
    return replace(source, groups_train=None, group_truth=None)
