"""How many clusters are there? Answered before any long training.

Every client trains one net, common to all, twice: on each half of its data. Clients of one distribution
move it the same way, so a number of clusters is real when clustering the first halves and clustering the
second halves give the same groups (their ARI, the *stability*). Fewer clusters than there are can be
stable too, more cannot: the largest stable number is recommended, and data without clusters gives 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client, Cohort, Payload, Shard, on_client
from clusterfl.engines.base import BaseEngine
from clusterfl.keys import Key
from clusterfl.method import Procedures
from clusterfl.parts.init import first_net, kmeans
from clusterfl.parts.local import SGD, sgd
from clusterfl.tree import Tree, flat, repeat, subtract

STABLE = 0.9  # ARI between the halves from which a number of clusters counts as real


@dataclass(frozen=True)
class View:
    """What speaks for a number of clusters."""

    k: int
    stability: float  # ARI between the clusterings of both halves
    silhouette: float | None  # how much nearer clients are to their own cluster than to the next
    inertia: float  # share of the updates' spread that is left within clusters (the elbow)
    eigengap: float | None  # drop after the k-th eigenvalue of the clients' similarity


@dataclass(frozen=True)
class Advice:
    """A recommendation and its reason."""

    k: int
    reason: str
    views: list[View]
    clients: int


def choose_k(
    engine: BaseEngine, rule: SGD, ks: Sequence[int], key: Key, *, sample: int | None = None, rounds: int = 2
) -> Advice:
    """Looks at up to ``sample`` clients; ``rounds`` local runs each, from one common net."""
    n = engine.clients if sample is None else min(sample, engine.clients)
    ids = keys.choice(keys.fold_in(key, "sample"), engine.clients, n)
    if max(ks) > n:
        raise ValueError(f"k={max(ks)} should be at most the {n} clients that are looked at")
    halves = updates(engine.cohort(ids, keys.fold_in(key, "halves")), rule, rounds, key)
    views = [view(k, *halves, keys.fold_in(key, k)) for k in ks]
    return replace(advise(views), clients=n)


def updates(cohort: Cohort, rule: SGD, rounds: int, key: Key) -> tuple[Tensor, Tensor]:
    """Two matrices ``[m, P]``: how each half of each client's data moves the common net, of length one."""
    start = first_net(cohort.task, key)
    longer = (
        replace(rule, epochs=rule.epochs * rounds) if rule.epochs else replace(rule, steps=(rule.steps or 1) * rounds)
    )
    got = cohort.run(Halves(longer).train, {"theta": start})
    before = repeat(start, len(got))
    a, b = (flat(subtract(got[name], before), cohort.task.params) for name in ("first", "second"))
    return torch.nn.functional.normalize(a), torch.nn.functional.normalize(b)


@dataclass(frozen=True)
class Halves(Procedures):
    """Local training on every other sample, twice."""

    rule: SGD

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        trained = [sgd(half(me, j), theta, self.rule, stream=j) for j in range(2)]
        return {"first": trained[0], "second": trained[1]}


def half(me: Client, j: int) -> Client:
    """The client with every other of its samples (a client of one sample has it in both halves)."""
    s = me.train
    rows = s.rows[j::2] if s.length > 1 else s.rows
    n = (s.n + 1 - j) // 2 if isinstance(s.n, Tensor) else rows.shape[0]
    least = max((me.least + 1 - j) // 2, 1)
    return replace(me, train=Shard(s.pool_x, s.pool_y, rows, n, s.ragged), least=least)


def view(k: int, first: Tensor, second: Tensor, key: Key) -> View:
    from sklearn.metrics import adjusted_rand_score, silhouette_score

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
        float(adjusted_rand_score(a, b)),
        float(silhouette_score(both.numpy(), s)) if 1 < found < len(s) else None,
        within / max(float(centred.square().sum()), 1e-12),
        gap,
    )


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
        return Advice(best.k, reason, list(views), 0)
    best = max(stable, key=lambda v: v.k)
    more = [v for v in views if v.k > best.k]
    if best.k == 1:
        worst = max((v.stability for v in more), default=0.0)
        reason = f"two halves of the same clients' data never agree on more than one cluster (at best {worst:.2f})"
    else:
        after = f", and only {more[0].stability:.2f} of it with k = {more[0].k}" if more else ""
        reason = f"both halves of the clients' data give the same {best.k} clusters (ARI {best.stability:.2f}){after}"
    return Advice(best.k, reason, list(views), 0)
