"""Do the clients of a scenario form groups? Told before any training, by what each says once about its data."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clusterfl.cohort import Spent
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine
from clusterfl.errors import ConfigError
from clusterfl.keys import Key
from clusterfl.methods.kin import Kin
from clusterfl.metrics import clustering
from clusterfl.parts.describe import grouped
from clusterfl.parts.evidence import Summaries, class_evidence, evidence, pooled, to_groups
from clusterfl.parts.kinship import best_possible
from clusterfl.parts.regroup import candidates


@dataclass(frozen=True)
class Diagnosis:
    """What the evidence says."""

    ids: Tensor  # [m] who answered
    labels: Tensor  # [m]
    maybe: Tensor  # [m, K] bool
    apart: Tensor  # [K, K] nats for "two groups" against "one", all classes together
    differ: Tensor  # [K, K, C] the same by class
    between: float  # how far groups lie apart, in units of a class's own spread
    clients: float  # how far clients of one group do
    seconds: float
    bytes_up: int  # of one client
    privacy: Spent | None = None  # what clients' descriptions cost, if that is accounted
    ari: float | None = None  # against the truth
    oracle: float | None = None  # the same of the best that these statistics allow: each placed by the true groups'

    @property
    def k(self) -> int:
        return len(self.apart)

    @property
    def sure(self) -> float | None:
        """Nats by which the two nearest groups are two; None for one group."""
        rest = self.apart[~torch.eye(self.k, dtype=torch.bool)]
        return float(rest.min()) if len(rest) else None

    def json(self, population: Population) -> dict[str, Any]:
        """With the names of clients and classes."""
        several = (self.maybe.sum(dim=1) > 1).nonzero().flatten().tolist()
        names = [population.names[i] for i in self.ids.tolist()]
        return {
            "groups": self.k,
            "sure": self.sure,
            "members": [[name for name, h in zip(names, self.labels, strict=True) if h == g] for g in range(self.k)],
            "either": {names[i]: self.maybe[i].nonzero().flatten().tolist() for i in several},
            "differ": [
                {
                    "groups": [a, b],
                    "nats": float(self.apart[a, b]),
                    "classes": [population.class_name(c) for c in differing(self.differ[a, b])],
                }
                for a in range(self.k)
                for b in range(a + 1, self.k)
            ],
            "between_groups": self.between,
            "between_clients": self.clients,
            "ari": self.ari,
            "oracle_ari": self.oracle,
            "bytes_up": self.bytes_up,
            "seconds": self.seconds,
            "privacy": None if self.privacy is None else asdict(self.privacy),
        }


def differing(nats: Tensor) -> list[int]:
    """The classes that look different in two groups, clearest first."""
    order = nats.argsort(descending=True).tolist()
    return [c for c in order if float(nats[c]) > 0]


def diagnose(engine: BaseEngine, method: Kin, key: Key) -> Diagnosis:
    """Every client describes its data once; nothing is trained."""
    if method.features != "random":
        raise ConfigError(
            f"method.features={method.features!r} should be 'random' for a look before training: there is no model yet"
        )
    start = time.perf_counter()
    cohort = engine.cohort(torch.arange(engine.clients), key)
    got = cohort.run(method.description.describe)
    s, found = grouped(got, method.description, method.groups, labels=method.by == "concept+labels")
    turned = found.turned(s)
    groups = pooled(turned, found.labels, int(found.labels.max()) + 1)
    seconds = time.perf_counter() - start
    ari, oracle = against_truth(engine.population, got.ids, s, found.labels)
    return Diagnosis(
        got.ids,
        found.labels,
        candidates(to_groups(turned, found.labels, found.spread), found.labels),
        -evidence(groups, groups, found.spread),
        -class_evidence(groups, groups, found.spread),
        found.spread.tau2**0.5,
        float(found.spread.omega.mean()) ** 0.5,
        seconds,
        engine.traffic.total_up // len(got),
        engine.spent() or method.spent(),
        ari,
        oracle,
    )


def against_truth(
    population: Population, ids: Tensor, s: Summaries, labels: Tensor
) -> tuple[float | None, float | None]:
    """ARI of the groups, and of the best that is possible with these statistics."""
    if population.truth is None:
        return None, None
    truth = population.truth[ids].unique(return_inverse=True)[1]
    return clustering(labels, truth).ari, clustering(best_possible(s, truth), truth).ari
