"""How many clusters are there? Answered before any long training.

Every client trains one net, common to all, twice: on each half of its data. Clients of one distribution
move it the same way, so a number of clusters is real when clustering the first halves and clustering the
second halves give the same groups. It is measured by the prediction strength of Tibshirani and Walther
(2005), here called *stability*: of the cluster that does worst, the share of pairs of clients that are
together both times. Fewer clusters than there are can be stable too, more cannot: the largest stable
number is recommended, and data without clusters gives 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.engines.base import BaseEngine
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, on_client
from clusterfl.method import Procedures
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.tree import Tree, flat, repeat, rows, subtract

STABLE = 0.8  # from which a number of clusters counts as real, as Tibshirani and Walther advise


@dataclass(frozen=True)
class View:
    """What speaks for a number of clusters."""

    k: int
    stability: float  # prediction strength between the clusterings of both halves
    silhouette: float | None  # how much nearer clients are to their own cluster than to the next
    inertia: float  # share of the updates' spread that is left within clusters (the elbow)
    eigengap: float | None  # drop after the k-th eigenvalue of the clients' similarity


@dataclass(frozen=True)
class Advice:
    """A recommendation and its reason."""

    k: int
    reason: str
    views: list[View]
    clients: int = 0
    runs: int = 0  # local runs per client that it took
    sure: bool = True  # whether any number was stable


def choose_k(
    engine: BaseEngine, rule: SGD, ks: Sequence[int], key: Key, *, sample: int | None = None, most: int = 16
) -> Advice:
    """Looks at up to ``sample`` clients, which train one common net for 2, 4, … at most ``most`` local runs:
    a large net has to leave its random start before its updates tell clients apart."""
    n = engine.clients if sample is None else min(sample, engine.clients)
    ids = keys.choice(keys.fold_in(key, "sample"), engine.clients, n)
    if max(ks) > n:
        raise ValueError(f"k={max(ks)} should be at most the {n} clients that are looked at")
    start = first_net(engine.task, key)
    first, second = repeat(start, n), repeat(start, n)
    advice = Advice(1, "nothing was looked at", [], n, 0)
    runs, goal = 0, 2
    while runs < most:
        goal = min(goal, most)
        while runs < goal:
            cohort = engine.cohort(ids, keys.fold_in(key, "halves", runs), runs)
            got = cohort.run(Halves(rule).train, first=first, second=second)
            ids, first, second = got.ids, got["first"], got["second"]
            runs += 1
        halves = [moves(models, start, engine.task.params) for models in (first, second)]
        views = [view(k, halves[0], halves[1], keys.fold_in(key, k)) for k in ks]
        advice = replace(advise(views), clients=len(ids), runs=runs)
        if advice.k > 1 and advice.sure:
            break
        goal *= 2
    return advice


def moves(models: Tree, start: Tree, names: Sequence[str]) -> Tensor:
    """``[m, P]``: the direction in which each client moved the common net."""
    return torch.nn.functional.normalize(flat(subtract(models, repeat(start, rows(models))), names))


@dataclass(frozen=True)
class Halves(Procedures):
    """Local training of two models, each on every other sample."""

    rule: SGD

    @on_client(first=Model(of="first"), second=Model(of="second"))
    def train(self, me: Client, first: Tree, second: Tree) -> dict[str, Payload]:
        a, b = (sgd(half(me, j), theta, self.rule, stream=j) for j, theta in enumerate((first, second)))
        return {"first": a, "second": b}


def half(me: Client, j: int) -> Client:
    """The client with every other of its samples (a client of one sample has it in both halves)."""
    s = me.train
    rows = s.rows[j::2] if s.length > 1 else s.rows
    n = (s.n + 1 - j) // 2 if isinstance(s.n, Tensor) else rows.shape[0]
    smallest = max((me.smallest + 1 - j) // 2, 1)
    return replace(me, train=Shard(s.pool_x, s.pool_y, rows, n, s.ragged), smallest=smallest)


def view(k: int, first: Tensor, second: Tensor, key: Key) -> View:
    from sklearn.metrics import silhouette_score

    both = torch.cat([first, second], dim=1)
    centred = both - both.mean(dim=0)
    gaps = _eigengaps(first, second)
    gap = gaps[k - 1] if k <= len(gaps) else None
    if k == 1:
        return View(1, 1.0, None, 1.0, gap)
    a, b, s = (kmeans(x, k, keys.fold_in(key, name)).numpy() for x, name in ((first, "a"), (second, "b"), (both, "s")))
    found = len(np.unique(s))
    within = sum(float((centred[s == c] - centred[s == c].mean(dim=0)).square().sum()) for c in np.unique(s))
    return View(
        k,
        min(prediction_strength(a, b), prediction_strength(b, a)),
        float(silhouette_score(both.numpy(), s)) if 1 < found < len(s) else None,
        within / max(float(centred.square().sum()), 1e-12),
        gap,
    )


def prediction_strength(a: np.ndarray, b: np.ndarray) -> float:
    """Of the cluster of ``a`` that does worst: the share of its pairs that are together in ``b`` too.

    A cluster of one client counts as confirmed if that client is alone in ``b`` as well.
    """
    strengths = []
    for c in np.unique(a):
        members = b[a == c]
        n = len(members)
        if n == 1:
            strengths.append(float((b == members[0]).sum() == 1))
        else:
            together = sum(int(m) * (int(m) - 1) for m in np.unique(members, return_counts=True)[1])
            strengths.append(together / (n * (n - 1)))
    return float(min(strengths))


def _eigengaps(first: Tensor, second: Tensor) -> list[float]:
    """Drops between successive eigenvalues of the clients' similarity across halves.

    Comparing one client's first half with another's second leaves out what is peculiar to a sample, so the
    large eigenvalues are those of the clusters.
    """
    a, b = first - first.mean(dim=0), second - second.mean(dim=0)
    cross = (a @ b.T).double()
    values = torch.linalg.eigvalsh((cross + cross.T) / 2).flip(0)
    values = torch.cat([values.new_tensor([float(values.abs().max())]), values])  # the common direction, centred away
    return (values[:-1] - values[1:]).tolist()


def advise(views: Sequence[View]) -> Advice:
    """The largest stable number of clusters."""
    stable = [v for v in views if v.stability >= STABLE]
    if not stable:
        best = max(views, key=lambda v: v.stability)
        reason = f"no number is stable (at least {STABLE}); k = {best.k} is the most stable, at {best.stability:.2f}"
        return Advice(best.k, reason, list(views), sure=False)
    best = max(stable, key=lambda v: v.k)
    more = [v for v in views if v.k > best.k]
    if best.k == 1:
        worst = max((v.stability for v in more), default=0.0)
        reason = f"two halves of the same clients' data never agree on more than one cluster (at best {worst:.2f})"
    else:
        after = f", but not with k = {more[0].k} ({more[0].stability:.2f})" if more else ""
        same = f"both halves of the clients' data give the same {best.k} clusters"
        reason = f"{same} (prediction strength {best.stability:.2f}){after}"
    return Advice(best.k, reason, list(views))
