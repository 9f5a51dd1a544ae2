"""Models compared by what they answer to public samples that the server holds (FedDS's indicator samples)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.message import Payload, on_server
from clusterfl.method import Procedures
from clusterfl.parts.distances import kl_divergence
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Answers(Procedures):
    """What models answer, as server work of its own."""

    @on_server
    def answers(self, me: Client, theta: Tree, x: Tensor) -> dict[str, Payload]:
        logits = torch.cat([me.task.logits(theta, piece) for piece in x.split(500)])
        # float64: the divergence of two models that agree is a small difference of large numbers
        return {"log_p": torch.log_softmax(logits.double(), dim=-1)}


def indicators_of(task: Task) -> Tensor:
    """The public samples, or an error that says how to get some."""
    if task.public is None or not len(task.public):
        raise ValueError(
            "task.public=None should be public samples that tell clusters apart: add "
            "--set data.indicators=10 (per class), give your own as task.public or, on real nodes, name a file of them "
            "as public in federation.toml"
        )
    return task.public


def answer_divergence(cohort: Cohort, theta: Tree, centers: Tree, x: Tensor) -> Tensor:
    """``[m, K]``: KL(softmax of model i || softmax of centre k), summed over the samples ``x``."""
    found = [cohort.map(Answers().answers, {"x": x}, theta=models)["log_p"] for models in (theta, centers)]
    log_p, log_q = (t for t in found if isinstance(t, Tensor))
    return kl_divergence(log_p, log_q)
