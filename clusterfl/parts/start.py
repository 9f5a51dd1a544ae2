"""Where the K centres start. It decides much of what clustering finds (docs/initialisation.md).

Methods that compare a client's *trained* model with the old centres (FeSEM, MD-ICFL, FedDS) tend to keep what they
start with: a client began at its own centre. From random nets FeSEM, which compares weights, never moves anybody;
MD-ICFL and FedDS, which compare answers, do once models are trained for long enough, and may end in the wrong place.
From equal centres every tie goes to index 0 and all but one cluster die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.cohort import Cohort, Replies
from clusterfl.fields import option
from clusterfl.keys import Key
from clusterfl.method import Clusters, Registered
from clusterfl.parts.aggregate import MeanBy, mean_by, mean_of
from clusterfl.parts.describe import Describe, grouped
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, Losses, Train
from clusterfl.parts.sketch import EXACT, Moves, group
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, take

Strategy = Literal[
    "independent",
    "identical-noise",
    "random-partition",
    "kmeans-local",
    "kmeans-local-exact",
    "loss-pp",
    "resample-balanced",
    "shared-body",
    "misplaced",
    "kin",
]


# ask for nothing, or for sums over clusters that the server has drawn itself
SUMMED: tuple[Strategy, ...] = ("independent", "identical-noise", "random-partition", "shared-body")


@dataclass(frozen=True)
class Start(Registered):
    """A way to start, and its numbers."""

    name: Strategy = "kmeans-local"
    restarts: int = option(20, "k-means restarts (FeSEM, section 4.2)")
    misplace: float = option(1 / 3, "misplaced: the share of clients that is moved away from where k-means puts it")
    noise: float = option(1e-3, "identical-noise: standard deviation")
    share: float | None = option(None, "resample-balanced: least share of clients per cluster; unset: IFCA's")
    tries: int = option(200, "resample-balanced: redraws before giving up")
    pretrain: int = option(5, "shared-body: rounds of FedAvg before the heads are drawn")
    warmup: int = option(5, "shared-body: rounds on a random partition")

    def clusters(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """The first centres and every client's first cluster."""
        n = len(cohort)
        if not 1 <= k <= n:
            raise ValueError(f"k={k} should be between 1 and the number of clients, {n}")
        if k == 1:  # nothing to tell apart: the single model that FedAvg starts from
            return self._independent(task, cohort, key, k, local)
        maker: Callable[[Task, Cohort, Key, int, SGD], Clusters] = {
            "independent": self._independent,
            "identical-noise": self._identical,
            "random-partition": self._random_partition,
            "kmeans-local": self._kmeans_local,
            "kmeans-local-exact": self._kmeans_local,
            "loss-pp": self._loss_pp,
            "resample-balanced": self._balanced,
            "shared-body": self._shared_body,
            "misplaced": self._misplaced,
            "kin": self._kin,
        }[self.name]
        return maker(task, cohort, key, k, local)

    # -- the strategies -------------------------------------------------------------------------------

    def _independent(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """K random nets and random ids: the papers' literal reading."""
        return Clusters(task.init_stack(keys.fold_in(key, "nets"), k), _random_ids(key, len(cohort), k))

    def _identical(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        one = repeat(first_net(task, key), k)
        shake = keys.fold_in(key, "noise")
        noisy = {
            n: t + self.noise * keys.normal(keys.fold_in(shake, n), *t.shape) if n in task.params else t
            for n, t in one.items()
        }
        return Clusters(noisy, _random_ids(key, len(cohort), k))

    def _random_partition(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        start, got = _local_round(task, cohort, key, local)
        ids = _random_ids(key, len(cohort), k)
        return Clusters(mean_by(got["theta"], ids[got.ids], old=repeat(start, k)), ids)

    def _kmeans_local(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """One local round from ONE common net, k-means of the updates, centres are the cluster means."""
        start, got = _local_round(task, cohort, key, local)
        found = self.groups(Moves.of(got["theta"], start, task.params), key, k)
        return _means(start, got, found, len(cohort), k)

    def _misplaced(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """The same with some clients in a wrong cluster, and the means of these: can a method mend it?"""
        start, got = _local_round(task, cohort, key, local)
        found = self.groups(Moves.of(got["theta"], start, task.params), key, k)
        wrong = keys.fold_in(key, "misplaced")
        some = keys.choice(wrong, len(found), round(self.misplace * len(found)))
        away = 1 + keys.randint(keys.fold_in(wrong, "where"), k - 1, len(some))
        return _means(start, got, put(found, some, (found[some] + away) % k), len(cohort), k)

    def groups(self, moves: Moves, key: Key, k: int) -> Tensor:
        """k-means of how far clients moved from a common start; above ``EXACT`` clients of sketches of it."""
        if k > len(moves):
            raise ValueError(f"k={k} should not exceed the {len(moves)} clients that answered the first round")
        seed = keys.fold_in(key, "kmeans")
        if self.name == "kmeans-local-exact" or len(moves) <= EXACT:
            return kmeans(moves.matrix(), k, seed, self.restarts)
        return group(moves, lambda points: kmeans(points, k, seed, self.restarts), squared_distances, seed, k=k)

    def _kin(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """The k groups that class means of random features show, before any training; centres as with k-means."""
        said = cohort.run(Describe().describe)
        if k > len(said):
            raise ValueError(f"k={k} should not exceed the {len(said)} clients that described their data")
        said = said.take(said.ids.argsort())
        ids = torch.zeros(len(cohort), dtype=torch.int64)
        ids[said.ids] = grouped(said, Describe(), k)[1].labels
        start, got = _local_round(task, cohort, key, local)
        return Clusters(mean_by(got["theta"], ids[got.ids], old=repeat(start, k)), ids)

    def _loss_pp(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """Farthest first by loss (FedJAX's HypCluster): each next centre is the model of the client that
        all centres so far serve worst; a client is chosen at most once."""
        _, got = _local_round(task, cohort, key, local)
        losses = torch.full((k, len(cohort)), torch.inf)
        chosen = [int(keys.randint(keys.fold_in(key, "first"), len(got)))]
        for j in range(k):
            asked = cohort.run(Losses().losses, {"centers": take(got["theta"], torch.tensor(chosen[-1:]))})
            losses[j, asked.ids] = asked["losses"][:, 0]
            if j < k - 1:
                worst = losses.min(dim=0).values[got.ids]
                worst[chosen] = -torch.inf
                chosen.append(int(worst.nan_to_num(posinf=-torch.inf).argmax()))
        return Clusters(take(got["theta"], torch.tensor(chosen)), losses.argmin(dim=0))

    def _balanced(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """IFCA's CIFAR code: redraw all nets until every one is the best of enough clients."""
        share = self.share if self.share is not None else (0.35 if k == 2 else 0.4 / k)
        for attempt in range(self.tries):
            centers = task.init_stack(keys.fold_in(key, "nets", attempt), k)
            got = cohort.run(Losses().losses, {"centers": centers})
            s = got["losses"].argmin(dim=1)
            if k == 1 or float(torch.bincount(s, minlength=k).min()) >= share * len(got):
                ids = torch.zeros(len(cohort), dtype=torch.int64)
                ids[got.ids] = s
                cohort.log(init_draws=attempt + 1)
                return Clusters(centers, ids)
        raise ValueError(
            f"share={share:g} of clients per cluster was not reached in tries={self.tries} draws of k={k} nets; "
            "it should be smaller, or use start = 'kmeans-local'"
        )

    def _shared_body(self, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Clusters:
        """IFCA's FEMNIST code: one body trained by FedAvg, K fresh heads, then a few rounds on a random
        partition of the clients."""
        theta, trainer = first_net(task, key), Train(local)
        for _ in range(self.pretrain):
            theta = mean_of(cohort, trainer.train, {"theta": theta}, theta, "size")
        heads = task.init_stack(keys.fold_in(key, "heads"), k)
        centers = {n: heads[n] if n in task.head else t for n, t in repeat(theta, k).items()}
        ids = _random_ids(key, len(cohort), k)
        for _ in range(self.warmup):
            mean = MeanBy(centers, by=ids, weights="n")
            cohort.run(trainer.train, theta=take(centers, ids), into=mean)
            centers = mean.result()
        return Clusters(centers, ids)


def first_net(task: Task, key: Key) -> Tree:
    """The one net that single-model methods and shared starts begin with: the first of the K independent."""
    return task.init(keys.fold_in(key, "nets", 0))


def _random_ids(key: Key, n: int, k: int) -> Tensor:
    """Random cluster ids, each cluster as large as the next."""
    return keys.permutation(keys.fold_in(key, "ids"), n) % k


def _local_round(task: Task, cohort: Cohort, key: Key, local: SGD) -> tuple[Tree, Replies]:
    """One net, and what every client makes of it."""
    start = first_net(task, key)
    return start, cohort.run(Train(local).train, {"theta": start})


def _means(start: Tree, got: Replies, found: Tensor, n: int, k: int) -> Clusters:
    """The means of the groups that were found; a client that did not answer waits in cluster 0."""
    ids = torch.zeros(n, dtype=torch.int64)
    ids[got.ids] = found
    return Clusters(mean_by(got["theta"], found, old=repeat(start, k)), ids)
