"""AWCFL (Li and Yan, 2023): around any clustered method, every cluster's model takes in some of the others'."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Payload, on_client
from clusterfl.method import Clusters, Method, Served, State
from clusterfl.methods.cfl import CFL
from clusterfl.task import Task
from clusterfl.tree import Tree, map_floats

log = logging.getLogger(__name__)

Use = Literal["serve", "train", "both"]
NEAR = 0.05  # beta this close to (K - 1) / K is warned of


@dataclass(frozen=True)
class Mixed(State):
    """The base's state, whose centres are its own, and the mixed centres beside it."""

    base: Any  # the base's state: Clusters, or one with ``centers`` and ``assign`` of its own
    centers: Tree  # stack [K], mixed

    @property
    def assign(self) -> Tensor:
        found: Tensor = self.base.assign
        return found


@dataclass(frozen=True)
class AWCFL(Method[Mixed]):
    """After each round of the base, C_k = (1 - beta) C_k + beta times the mean of the other clusters' models."""

    name: ClassVar[str] = "awcfl"
    summary: ClassVar[str] = "any clustered base; each cluster's model takes in a share beta of the others'"
    paper: ClassVar[str] = "Li, Yan, Computer Science 50(11A), 2023"
    sums: ClassVar[bool] = True  # it adds nothing to what its base asks for

    base: Method[Any] = option(CFL(), "the clustered method around which it works")
    beta: float = option(0.5, "share of the other clusters' models")
    # a base that chooses clusters by its centres (IFCA, FeSEM) cannot tell mixed ones apart near beta = (K - 1) / K
    mix_for: Use = option(
        "serve", "where mixed models are used; 'serve': the base never sees them; 'both': the paper's"
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta={self.beta} should be between 0 and 1")
        one_of(Use, self, "mix_for")
        if not self.base.clustered:
            raise ValueError(f"base={self.base.name!r} should be a clustered method")
        if self.base.mixture:
            raise ValueError(f"base={self.base.name!r} should give each client one model, not a mixture of K")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Mixed:
        base = self.base.init(task, cohort, key)
        if not isinstance(base, Clusters):
            raise ValueError(f"base={self.base.name!r} should keep K centres, one per cluster, in its state")
        return Mixed(base, base.centers)

    def round(self, state: Mixed, cohort: Cohort) -> Mixed:
        start = state.base if self.mix_for == "serve" else replace(state.base, centers=state.centers)
        base = self.base.round(start, cohort)  # Alg. 1, lines 3.1-3.2 and the mean of 3.3.1
        alive = base.assign.unique()
        self.warn(len(alive), len(state.assign.unique()) if cohort.round else 0)
        return Mixed(base, mix(base.centers, alive, self.beta))  # line 3.3.1, eq. 2

    def warn(self, k: int, before: int) -> None:
        """Says so, whenever the number of clusters changes, if their models all but coincide."""
        same = (k - 1) / k
        if k != before and k > 1 and abs(self.beta - same) < NEAR:
            log.warning("beta=%g with %d clusters: at %g all cluster models coincide", self.beta, k, same)

    def serve(self, state: Mixed, ids: Tensor) -> Served:
        mixed = state.base if self.mix_for == "train" else replace(state.base, centers=state.centers)
        return self.base.serve(mixed, ids)

    def admit(self, state: Mixed, cohort: Cohort) -> Served:
        # the choice is the base's, among models that differ; what is used is what others use
        chosen = self.base.admit(state.base, cohort)
        return replace(chosen, models=self.serve(state, torch.zeros(0, dtype=torch.int64)).models)

    def cost(self, task: Task) -> tuple[int, int]:
        return self.base.cost(task)

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Payload]:
        return dict(self.base.personalise(me, theta, **shared))


def mix(centers: Tree, alive: Tensor, beta: float) -> Tree:
    """Eq. 2 over the clusters that have clients, all at once: each from the others' unmixed models."""
    k = len(alive)
    if k < 2 or beta == 0.0:
        return centers

    def mixed(c: Tensor) -> Tensor:
        own, out = c[alive], c.clone()
        for j, row in enumerate(alive.tolist()):
            out[row] = (1.0 - beta) * own[j] + beta / (k - 1) * torch.cat([own[:j], own[j + 1 :]]).sum(dim=0)
        return out

    return map_floats(mixed, centers)
