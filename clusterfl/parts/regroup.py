"""Clients change groups: names that stay, models that go along, and who may belong where."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.parts.kinship import numbered
from clusterfl.parts.similarity import keep_names
from clusterfl.tree import Tree, concat, map_floats, put, row, rows, stack

SURE = 0.95  # a client whose likeliest group has a smaller share of the evidence may belong to others too


def candidates(evidence: Tensor, labels: Tensor) -> Tensor:
    """``[N, K]`` bool: the groups that a client may belong to; its own alone where the evidence is clear."""
    shares = evidence.softmax(dim=1)
    own = torch.nn.functional.one_hot(labels, evidence.shape[1]).bool()
    unsure = shares.max(dim=1).values < SURE
    return own | (unsure.unsqueeze(1) & (shares > 1.0 - SURE))


def joined_again(labels: Tensor, joined: Tensor) -> Tensor:
    """Groups most of whose members are ``joined`` become one."""
    k = int(labels.max()) + 1
    votes = torch.zeros(k).index_add_(0, labels, 2.0 * joined.float() - 1.0)
    together = (votes > 0)[labels]
    return numbered(torch.where(together, k, labels))


def renamed(labels: Tensor, before: Tensor) -> Tensor:
    """The same groups under the names that most of their members had ``before``, without gaps."""
    most = max(int(labels.max()), int(before.max())) + 1
    named: Tensor = keep_names(labels, before, most).unique(return_inverse=True)[1]
    return named


def followed(maybe: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """``[N, K']``: the groups that clients may belong to, when those of ``before`` went into those of ``after``."""
    out = torch.zeros(len(after), int(after.max()) + 1, dtype=torch.bool)
    for old in before.unique().tolist():
        out[:, int(after[before == old][0])] |= maybe[:, old]
    return out


def with_means(centers: Tree, assign: Tensor, maybe: Tensor) -> tuple[Tree, Tensor]:
    """Models and which one each client uses: its group's, or the mean of those that it may belong to."""
    several = (maybe.sum(dim=1) > 1).nonzero().flatten()
    if not len(several):
        return centers, assign
    sets, which = maybe[several].unique(dim=0, return_inverse=True)
    means = stack([mixed(centers, some.double()) for some in sets])
    return concat([centers, means]), put(assign, several, rows(centers) + which)


def mixed(centers: Tree, mass: Tensor) -> Tree:
    """The mean of some models by their mass; of one, that model bit for bit."""
    some = mass.nonzero().flatten().tolist()
    if len(some) == 1:
        return row(centers, some[0])
    share = mass / mass.sum()
    models = row(centers, some[0])
    return map_floats(
        lambda t, stack: sum((stack[j] * float(share[j]) for j in some[1:]), t * float(share[some[0]])), models, centers
    )


def common_body(centers: Tree, head: tuple[str, ...], mass: Tensor) -> Tree:
    """The groups' models with one body, the mean over groups by their mass; heads stay apart."""
    body = mixed(centers, mass.double()) if bool(mass.any()) else row(centers, 0)
    return {n: t if n in head else body[n].expand_as(t).clone() for n, t in centers.items()}
