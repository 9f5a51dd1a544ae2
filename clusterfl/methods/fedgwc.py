"""FedGWC (Licciardi et al., ICML 2025): clusters split by how usual clients' losses are among those they train with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Batch, Client
from clusterfl.cohort import Cohort
from clusterfl.fields import above, at_least, option
from clusterfl.keys import Key
from clusterfl.message import Loss, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.local import SGD, Losses, gradient, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, put, repeat, row, take

STILL = 1e-16  # beside a variance, which may be zero


@dataclass(frozen=True)
class Interactions(Clusters):
    """The clusters, and how clients' losses compare with those of the clients that they trained with."""

    weights: Tensor  # [N, N] float64: row i holds the rewards of client i in the rounds that it shared with each other
    change: Tensor  # [K] float64: the running mean square change of a cluster's weights
    calm: Tensor  # [K] int64: rounds in a row in which it was small


@dataclass(frozen=True)
class FedGWC(Method[Interactions]):
    """One cluster at first; a cluster whose weights have settled is cut by spectral clustering if that is any good.

    Shapes: N clients, m in the cohort, S losses of each.
    """

    name: ClassVar[str] = "fedgwc"
    summary: ClassVar[str] = "Gaussian rewards of loss traces, spectral clustering of them, clusters cut in two or more"
    paper: ClassVar[str] = "Licciardi, Leo, Fanì, Caputo, Ciccone, ICML 2025"
    rereads: ClassVar[bool] = True
    runs = (Losses,)

    local: SGD = SGD()
    losses: int = option(8, "S: losses of a client's local steps that it reports, evenly spaced")
    gamma: float = option(0.1, "of the kernel between clients: larger is stricter")
    eps: float = option(1e-4, "mean square change of the weights, below which they have settled")
    most: int = option(4, "parts that a cluster is cut into at once, at most")

    def __post_init__(self) -> None:
        at_least(1, self, "losses")
        at_least(2, self, "most")
        above(0, self, "gamma", "eps")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Interactions:
        n = len(cohort)
        weights = torch.full((n, n), 1.0 / n**2, dtype=torch.float64)
        first, never = torch.zeros(n, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        return Interactions(repeat(first_net(task, key), 1), first, weights, torch.ones(1, dtype=torch.float64), never)

    def round(self, state: Interactions, cohort: Cohort) -> Interactions:
        before = state.assign
        mean = MeanBy(state.centers, by=state.assign, weights="n")
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)
        got = got.take(got.ids.argsort())
        state = replace(state, centers=mean.result())
        for j in range(state.k):
            at = (state.assign[got.ids] == j).nonzero().flatten()
            if len(at):
                state = self.observe(state, j, got.ids[at], rewards(got["losses"][at], got["n"][at]))
        log_clusters(cohort, before, state.assign, state.k)
        return state

    def observe(self, state: Interactions, j: int, ids: Tensor, reward: Tensor) -> Interactions:
        """Cluster j's weights move towards the rewards of those who were there; once they settle it may be cut."""
        members = (state.assign == j).nonzero().flatten()
        alpha = len(ids) / len(members)
        pairs = (ids.unsqueeze(1), ids.unsqueeze(0))
        weights, old = state.weights.clone(), state.weights[pairs]
        weights[pairs] = (1.0 - alpha) * old + alpha * (reward / reward.sum()).unsqueeze(1)
        gone = (weights[pairs] - old).square().mean()
        change, calm = state.change.clone(), state.calm.clone()
        change[j] = (1.0 - alpha) * change[j] + alpha * gone
        calm[j] = calm[j] + 1 if float(change[j]) < self.eps else 0
        state = replace(state, weights=weights, change=change, calm=calm)
        return self.cut(state, j, members, 1.0 / alpha) if int(calm[j]) >= round(1.0 / alpha) else state

    def cut(self, state: Interactions, j: int, members: Tensor, rarity: float) -> Interactions:
        """Cluster j in as many parts as separate it best; its model is where each of them begins."""
        affinity = kernel(state.weights[members][:, members], self.gamma)
        parts = best_parts(affinity, min(self.most, int(rarity)), keys.fold_in(keys.key(0), "fedgwc", j))
        fresh = put(state.change, torch.tensor([j]), torch.ones(1)), put(state.calm, torch.tensor([j]), torch.zeros(1))
        if parts is None:
            return replace(state, change=fresh[0])  # it waits until the weights have settled again
        more = int(parts.max())
        return Interactions(
            concat([state.centers, repeat(row(state.centers, j), more)]),
            put(state.assign, members, torch.where(parts == 0, j, state.k - 1 + parts)),
            state.weights,
            torch.cat([fresh[0], torch.ones(more, dtype=torch.float64)]),
            torch.cat([fresh[1], torch.zeros(more, dtype=torch.int64)]),
        )

    def serve(self, state: Interactions, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Interactions, cohort: Cohort) -> Served:
        got = cohort.run(Losses().losses, {"centers": state.centers})
        log_margin(cohort, got["losses"])
        return admitted(state.centers, cohort, got, got["losses"].argmin(dim=1))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + 4 * self.losses + 4

    @on_client(theta=Model(of="theta"), losses=Loss(), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        seen: list[Tensor] = []

        def watched(me: Client, theta: Tree, batch: Batch) -> Tree:
            seen.append(me.task.eval_loss(theta, batch.x, batch.y, batch.w).detach())
            return gradient(me, theta, batch)

        trained = sgd(me, theta, self.local, watched)
        return {"theta": trained, "losses": self.spaced(me, torch.stack(seen)), "n": me.size}

    def spaced(self, me: Client, seen: Tensor) -> Tensor:
        """``[S]`` of the losses before each step; those of padding, which a stack may have, are passed over."""
        n, size, epochs = torch.as_tensor(me.n, device=seen.device), self.local.batch, self.local.epochs
        mine, padded = -(-n // size), -(-me.train.length // size)  # batches in an epoch
        steps = len(seen) if epochs is None else epochs * mine
        at = torch.arange(self.losses, device=seen.device) * steps // self.losses
        return seen.gather(0, at if epochs is None else at // mine * padded + at % mine)


def rewards(losses: Tensor, sizes: Tensor) -> Tensor:
    """``[m]``: how usual each client's losses ``[m, S]`` are: a Gaussian around everybody's mean, over its steps."""
    share = (sizes / sizes.sum()).double().unsqueeze(1)
    mean = (share * losses.double()).sum(dim=0)
    off = (losses.double() - mean).square()
    variance = (share * off).sum(dim=0) + STILL
    return torch.exp(-0.5 * off / variance).mean(dim=1)


def kernel(weights: Tensor, gamma: float) -> Tensor:
    """``[n, n]``: how alike the rewards of others are beside two clients: ``exp(-gamma |v_i - v_j|^2)``.

    The v are their columns, scaled to 0..1; the entries of the two themselves are left out.
    """
    w = weights.mT
    w = (w - w.min()) / (w.max() - w.min()).clamp(min=1e-8)
    own = (w.diagonal().unsqueeze(1) - w.mT).square() + (w - w.diagonal()).square()
    return torch.exp(-gamma * (squared_distances(w, w) - own).clamp(min=0.0)).fill_diagonal_(0.0)


def best_parts(affinity: Tensor, most: int, key: Key) -> Tensor | None:
    """The spectral clustering in 2 to ``most`` parts with the least Davies-Bouldin score; None if none is below 1."""
    from sklearn.cluster import SpectralClustering  # here, so that nodes start without scikit-learn
    from sklearn.manifold import SpectralEmbedding
    from sklearn.metrics import davies_bouldin_score

    best, score, seed = None, 1.0, keys.seed32(key)
    for k in range(2, min(most, len(affinity) - 2) + 1):
        settings = {"affinity": "precomputed", "random_state": seed}
        places = SpectralEmbedding(n_components=k, **settings).fit_transform(affinity.numpy())
        parts = SpectralClustering(k, n_components=k, assign_labels="cluster_qr", **settings).fit_predict(
            affinity.numpy()
        )
        if len(set(parts.tolist())) == k and (found := davies_bouldin_score(places, parts)) < score:
            best, score = parts, found
    return None if best is None else torch.as_tensor(best, dtype=torch.int64)
