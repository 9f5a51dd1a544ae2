"""How alike clients are by what their flows generate (FCCA, section 3.3).

Shapes: eps [2, n, d] the two halves of the noise; signatures [N, 2, C, d]; B, P, S [C, N, N].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl.models.flow import Flow
from clusterfl.tree import Tree


def signature(flow: Flow, theta: Tree, eps: Tensor, means: Tensor | None = None) -> Tensor:
    """``[2, C, d]``: the mean direction of the features that a client's flow generates, for each half of the
    noise and each label; around these ``means`` [C, d], if given.

    Nothing else of a flow is needed: eps1 and eps2 are independent, so the expected cosine between the
    features of two clients is the product of their mean directions, over all pairs of draws at once.
    """
    halves, draws, _ = eps.shape
    onehot = torch.eye(flow.classes, device=eps.device).unsqueeze(1)  # [C, 1, C]
    z = flow.inverse(
        theta,
        eps.unsqueeze(1).expand(-1, flow.classes, -1, -1),
        onehot.unsqueeze(0).expand(halves, -1, draws, -1),
    )
    z = z if means is None else z + means.unsqueeze(1)
    return F.normalize(z, dim=-1).mean(dim=-2)


class Similarity(NamedTuple):
    """FCCA's three matrices, one of each for every label."""

    b: Tensor  # basic similarity (eq. 4): the mean cosine between what two clients generate
    p: Tensor  # confidence: how far the surer of the two generates one thing rather than noise
    s: Tensor  # their product

    def mean(self) -> Similarity:
        """The three ``[N, N]`` means over labels."""
        return Similarity(self.b.mean(dim=0), self.p.mean(dim=0), self.s.mean(dim=0))


def similarity(signatures: Tensor) -> Similarity:
    """B, P and S of clients from their signatures."""
    first, second = signatures.double().unbind(dim=1)
    b = torch.einsum("icd,jcd->cij", first, second)
    own = b.diagonal(dim1=1, dim2=2).abs()  # [C, N]
    p = torch.maximum(own.unsqueeze(2), own.unsqueeze(1))
    return Similarity(b, p, b * p)


def pairwise(signatures: Tensor) -> Tensor:
    """``[N, N]``: S over all labels, which is what is clustered (the paper's D).

    Label by label, for thousands of clients; symmetric, although eps1 and eps2 differ.
    """
    d = torch.zeros(len(signatures), len(signatures), dtype=torch.float64)
    for label in signatures.split(1, dim=2):
        d += similarity(label).s[0] / signatures.shape[2]
    return (d + d.T) / 2.0


def mean_by_cluster(alike: Tensor, assign: Tensor, k: int) -> Tensor:
    """``[m, K]``: the mean similarity to each cluster's members; -1, the least there can be, to an empty one."""
    member = F.one_hot(assign, k).to(alike.dtype)
    size = member.sum(dim=0)
    return torch.where(size > 0, alike @ member / size.clamp(min=1.0), -1.0)


def keep_names(found: Tensor, before: Tensor, k: int) -> Tensor:
    """``found`` under new names, so that as many clients as possible keep the cluster they had ``before``."""
    table = torch.zeros(k, k, dtype=torch.int64)
    table.index_put_((found, before), torch.ones_like(found), accumulate=True)
    from scipy.optimize import linear_sum_assignment  # here, so that nodes start without SciPy

    _, names = linear_sum_assignment(-table.numpy())
    return torch.as_tensor(names, dtype=torch.int64)[found]
