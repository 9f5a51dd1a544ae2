"""Which group a newcomer belongs to, by what it says about its data: nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies
from clusterfl.fields import option
from clusterfl.message import Loss, Payload, on_client
from clusterfl.method import Procedures
from clusterfl.parts.describe import Describe, read
from clusterfl.parts.evidence import pooled
from clusterfl.parts.kinship import placed
from clusterfl.parts.told import Told
from clusterfl.parts.unlabelled import misfits
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Place(Procedures):
    """How newcomers are placed among groups of clients that have described themselves."""

    describe: Describe = field(default_factory=Describe)
    labels: bool = option(False, "whether shares of labels tell groups apart, too")

    @on_client(losses=Loss())
    def fit(
        self, me: Client, means: Tensor, shares: Tensor, whiten: Tensor, theta: Tree | None = None
    ) -> dict[str, Payload]:
        """How badly the client's inputs, without labels, fit each group."""
        z = torch.cat([self.describe.features(me, x, theta) @ whiten for x, _, _ in me.train.pieces()])
        return {"losses": misfits(z, me.train.w, means, shares)}


def by_labels(place: Place, cohort: Cohort, told: Told, assign: Tensor, probe: Tree) -> tuple[Replies, Tensor]:
    """Those who replied, and ``[n, K]`` the evidence for each group by their class means."""
    got = cohort.run(place.describe.describe, _sent(probe))
    s, _ = told.summaries(told.speakers, labels=place.labels, guests=read(got, place.describe))
    return got, placed(s, assign[told.speakers], int(assign.max()) + 1)


def by_inputs(place: Place, cohort: Cohort, told: Told, assign: Tensor, probe: Tree) -> tuple[Replies, Tensor]:
    """The same by their inputs alone, as a mixture of each group's classes."""
    s, whiten = told.summaries(told.speakers, labels=place.labels)
    groups = pooled(s, assign[told.speakers], int(assign.max()) + 1)
    shares = groups.weights / groups.weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
    known = {"means": groups.means.float(), "shares": shares.float(), "whiten": whiten.float()}
    got = cohort.run(place.fit, {**_sent(probe), **known})
    return got, -got["losses"].double()


def _sent(probe: Tree) -> dict[str, Payload]:
    return {"theta": probe} if probe else {}
