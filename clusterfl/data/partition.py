"""Who gets which rows: sizes, label mixes and draws over an array of labels. Pure functions of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.errors import ConfigError, DataError, suggestion
from clusterfl.keys import Key

Array = npt.NDArray[Any]
SIZES = ("equal", "lognormal")
LEAST = 2  # a client with fewer samples can be neither trained nor split
TRIES = 20


class Drawn(NamedTuple):
    rows: list[Tensor]  # one int64 tensor of row numbers per client
    shared: int  # rows that more than one client holds
    repeated: int  # places where one client holds a row twice


def apportion(weights: Array, total: int, least: int = 0) -> Array:
    """Whole numbers that sum to ``total``, at least ``least`` each, otherwise in proportion to ``weights``.

    Largest remainders get the units that rounding down leaves, the largest parts give to those below least;
    ties go to the lowest index.
    """
    if least * len(weights) > total:
        raise DataError(f"total={total} should be at least {least} for each of {len(weights)} parts")
    exact = np.asarray(weights, dtype=np.float64) / np.sum(weights) * total
    whole: Array = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    for poor in np.flatnonzero(whole < least):
        while whole[poor] < least:
            whole[whole.argmax()] -= 1
            whole[poor] += 1
    return whole


def client_sizes(n_clients: int, samples: int, how: str, key: Key, sigma: float = 1.0) -> Array:
    """Samples per client: all ``samples``, or log-normal with that mean. They sum to n_clients * samples."""
    if samples < LEAST:
        raise DataError(f"samples={samples} should be at least {LEAST} for each client")
    if how == "equal":
        return np.full(n_clients, samples, dtype=np.int64)
    if how == "lognormal":
        weights = keys.numpy_rng(key).lognormal(0.0, sigma, n_clients)
        return apportion(weights, n_clients * samples, LEAST)
    raise ConfigError(f"sizes={how!r} should be one of the ways to size clients{suggestion(how, SIZES)}")


def label_mixes(
    n_clients: int,
    classes: int,
    alpha: float | None,
    key: Key,
    prior: Array | None = None,
    per_class: bool = False,
) -> Array:
    """Each client's class probabilities ``[n_clients, classes]``; ``alpha=None`` is the prior itself.

    The concentration is ``alpha * prior``, that is alpha / classes per class, as MD-ICFL (and Hsu et al.,
    2019) mean Dir(alpha, p). ``per_class=True`` puts alpha on every class, ten times closer to IID for ten
    classes.
    """
    prior = np.full(classes, 1.0 / classes) if prior is None else np.asarray(prior) / np.sum(prior)
    if alpha is None:
        return np.tile(prior, (n_clients, 1))
    if alpha <= 0:
        raise ConfigError(f"alpha={alpha} should be above 0, or unset for IID labels")
    mixes = np.zeros((n_clients, classes))
    held = np.flatnonzero(prior)
    rng = keys.numpy_rng(key)
    strength = np.full(len(held), alpha) if per_class else alpha * prior[held]
    mixes[:, held] = rng.dirichlet(strength, n_clients)
    # a tiny concentration underflows to no class at all; its limit is one class drawn from the prior
    empty = ~(np.abs(mixes.sum(1) - 1) < 1e-6)
    mixes[empty] = np.eye(classes)[rng.choice(classes, int(empty.sum()), p=prior)]
    return mixes


def _deal(pool: Array, counts: Array, rng: np.random.Generator) -> Array:
    """``counts.sum()`` rows for clients in turn; a used-up pool is shuffled anew.

    The client at the seam gets rows it does not hold yet, so no client holds a row twice unless it asks
    for more rows than there are.
    """
    total, ends = int(counts.sum()), counts.cumsum()
    decks = [rng.permutation(pool)]
    dealt = len(pool)
    while dealt < total:
        client = int(np.searchsorted(ends, dealt, side="right"))
        begun = min(dealt - int(ends[client] - counts[client]), len(pool))
        held = decks[-1][len(pool) - begun :]
        fresh = rng.permutation(pool)
        again = np.isin(fresh, held)
        decks.append(np.concatenate([fresh[~again], fresh[again]]))
        dealt += len(pool)
    return np.concatenate(decks)[:total]


def _by_client(rows: Array, owners: Array, sizes: Array, rng: np.random.Generator) -> list[Tensor]:
    """Rows sorted by owner, in random order inside each owner."""
    order = np.lexsort((rng.random(len(rows)), owners))
    return list(torch.split(torch.from_numpy(rows[order]), sizes.tolist()))


def draw(labels: Array, mixes: Array | None, sizes: Array, key: Key, reuse: bool = True) -> Drawn:
    """Rows for each client, without replacement while a class lasts; ``mixes=None`` takes rows as they come.

    A class that runs out is dealt again if ``reuse`` (clients then share samples), else it is a DataError.
    """
    rng = keys.numpy_rng(key)
    clients = np.arange(len(sizes))
    if mixes is None:
        pools: dict[int, Array] = {-1: np.arange(len(labels))}
        counts = np.asarray(sizes)[:, None]
    else:
        pools = {c: np.flatnonzero(labels == c) for c in range(mixes.shape[1])}
        counts = rng.multinomial(sizes, mixes / mixes.sum(1, keepdims=True))
    for (c, pool), asked in zip(pools.items(), counts.sum(0).tolist(), strict=True):
        if asked > len(pool) and not (reuse and len(pool)):
            what = "samples" if c < 0 else f"samples of class {c}"
            raise DataError(
                f"reuse={reuse}: {asked} {what} are asked for and the pool should hold as many, but it has "
                f"{len(pool)}; ask for fewer samples, a larger alpha, or set reuse=true to share them"
            )
    parts = [_deal(p, n, rng) for p, n in zip(pools.values(), counts.T, strict=True) if n.sum()]
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    owners = np.concatenate([np.repeat(clients, n) for n in counts.T])
    held = np.unique(owners * max(len(labels), 1) + rows)
    shared = int((np.bincount(held % max(len(labels), 1)) > 1).sum()) if len(held) else 0
    return Drawn(_by_client(rows, owners, np.asarray(sizes), rng), shared, len(rows) - len(held))


def draw_mixed(
    parts: Sequence[tuple[Array, Array]],
    classes: int,
    alpha: float | None,
    key: Key,
    *,
    per_class: bool = False,
    reuse: bool = True,
) -> list[Drawn]:
    """One draw per (labels, sizes), all with the same mixes: a client's train and test rows look alike.

    Without reuse, mixes that ask too much of a class are drawn afresh, 20 times at most.
    """
    for labels, sizes in parts:
        if not reuse and int(np.sum(sizes)) > len(labels):
            raise DataError(
                f"reuse=false: the clients' {int(np.sum(sizes))} samples should be at most the {len(labels)} "
                "there are; ask for fewer samples or clients, or set reuse=true to share them"
            )
    here = (np.bincount(parts[0][0], minlength=classes) > 0).astype(np.float64)
    for attempt in range(TRIES):
        fresh = keys.fold_in(key, attempt)
        mixes = None
        if alpha is not None:
            n_clients = len(parts[0][1])
            mixes = label_mixes(n_clients, classes, alpha, keys.fold_in(fresh, "mixes"), here, per_class)
        try:
            return [
                draw(labels, mixes, sizes, keys.fold_in(fresh, "draw", i), reuse)
                for i, (labels, sizes) in enumerate(parts)
            ]
        except DataError as error:
            failed = error
    raise DataError(f"{failed} (the last of {TRIES} draws of alpha={alpha})")


def by_class_groups(
    labels: Array, n_clients: int, groups: int, alpha: float, key: Key, classes: int | None = None
) -> tuple[list[Tensor], Array]:
    """FedEM's split (also FedDSMIC's): classes shuffled into groups, each group dealt out by Dir(alpha).

    Every row goes to exactly one client. Also each client's main group, which is only a soft truth: clients
    are mixtures. ``groups=classes`` is the per-class Dirichlet split of Sattler's CFL code.
    """
    if alpha <= 0:
        raise ConfigError(f"alpha={alpha} should be above 0 to split class groups over clients")
    if n_clients * LEAST > len(labels):
        most = len(labels) // LEAST
        raise DataError(f"clients={n_clients} should be at most {most}, {LEAST} of {len(labels)} samples each")
    classes = int(labels.max()) + 1 if classes is None else classes
    if not 1 <= groups <= classes:
        raise ConfigError(f"groups={groups} should be between 1 and the number of classes, {classes}")
    rng = keys.numpy_rng(key)
    group_of = np.empty(classes, dtype=np.int64)
    group_of[rng.permutation(classes)] = np.arange(classes) % groups
    owners = np.empty(len(labels), dtype=np.int64)
    for g in range(groups):
        rows = rng.permutation(np.flatnonzero(group_of[labels] == g))
        counts = rng.multinomial(len(rows), label_mixes(1, n_clients, alpha, _sub(rng), None, True)[0])
        owners[rows] = np.repeat(np.arange(n_clients), counts)
    owners = _feed_the_poorest(owners, n_clients, rng)
    held = np.zeros((n_clients, groups), dtype=np.int64)
    np.add.at(held, (owners, group_of[labels]), 1)
    return _by_client(np.arange(len(labels)), owners, held.sum(1), rng), held.argmax(1)


def _sub(rng: np.random.Generator) -> Key:
    return keys.key(int(rng.integers(2**63)))


def _feed_the_poorest(owners: Array, n_clients: int, rng: np.random.Generator) -> Array:
    """Moves single rows from the richest clients until every client has LEAST."""
    owners = owners.copy()
    sizes = np.bincount(owners, minlength=n_clients)
    for poor in np.flatnonzero(sizes < LEAST):
        while sizes[poor] < LEAST:
            rich = int(sizes.argmax())
            owners[rng.choice(np.flatnonzero(owners == rich))] = poor
            sizes[rich] -= 1
            sizes[poor] += 1
    return owners


def stratified(labels: Array, share: float, key: Key) -> tuple[Array, Array]:
    """Row numbers in two parts, the second with ``share`` of each class (rounded), both ascending."""
    rng = keys.numpy_rng(key)
    second = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        second[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~second), np.flatnonzero(second)


def balanced(labels: Array, total: int, classes: Sequence[int], key: Key) -> Array:
    """At most ``total`` rows with equally many of each of ``classes``, as many as the rarest class allows."""
    rng = keys.numpy_rng(key)
    pools = [np.flatnonzero(labels == c) for c in classes]
    each = min([total // max(len(pools), 1), *(len(p) for p in pools)])
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *(rng.permutation(p)[:each] for p in pools)]))
