"""LEAF's Synthetic: tasks whose true linear models gather around several centres.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, data/synthetic. Its published code
normalises the softmax over a task's samples where the paper has classes; every task then has labels of most
classes, and a linear model of all clusters fits badly. "synthetic" does as that code does, "synthetic_argmax"
as the paper says: the label is the largest logit, and most tasks have one or two classes. A task is a client
where the split is natural; any other split deals out the samples of many tasks of one cluster.
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
NAMES = ("synthetic", "synthetic_argmax")
POOLED_TASKS = 1000  # as LEAF's own instructions have it


def is_synthetic(name: str) -> bool:
    return name.partition(":")[0] in NAMES


def shape_of(name: str) -> tuple[int, int]:
    """Dimensions and classes: "synthetic" has 60 and 10, "synthetic:20x5" has 20 and 5."""
    _, _, given = name.partition(":")
    if not given:
        return 60, 10
    dims, _, classes = given.partition("x")
    if not (dims.isdecimal() and classes.isdecimal() and int(dims) > 0 and int(classes) > 1):
        raise ConfigError(f"source={name!r} should end in DIMSxCLASSES, for example synthetic:60x10")
    return int(dims), int(classes)


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


def pooled(name: str, key: Key) -> Source:
    """The samples of LEAF's 1,000 tasks around one centre, as one dataset without clients."""
    source = generate(name, np.zeros(POOLED_TASKS, np.int64), leaf_sizes(POOLED_TASKS, keys.fold_in(key, "sizes")), key)
    return replace(source, groups_train=None, group_truth=None)
