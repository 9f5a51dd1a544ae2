"""FedPer (Arivazhagan et al., 2019): the body is averaged, the head never leaves its client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.task import Task
from clusterfl.tree import Tree, nbytes, repeat, row, select


def tail(task: Task, layers: int) -> tuple[str, ...]:
    """Every tensor of the last ``layers`` layers that have parameters."""
    holders = [n for n, m in task.module.named_modules() if any(True for _ in m.parameters(recurse=False))]
    if layers >= len(holders):
        raise ValueError(f"layers={layers} should be below the model's {len(holders)}: some should be shared")
    kept = holders[len(holders) - layers :]
    return tuple(n for n in (*task.params, *task.fixed, *task.buffers) if n.rpartition(".")[0] in kept)


@dataclass(frozen=True)
class FedPer(Method[Single]):
    """Clients train body and head together; the server only ever sees bodies.

    The state's head is the first net's, as it was drawn: it stands in where a whole model is asked for.
    """

    name: ClassVar[str] = "fedper"
    summary: ClassVar[str] = "FedAvg on the body; every client keeps a head of its own"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
    reveals: ClassVar[str] = "the body of its trained model, and its number of samples"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    layers: int = 1  # the last layers that stay on the client (the classifier); 0 is FedAvg
    weights: Literal["size", "uniform"] = "size"
    tune_epochs: int = 5  # of a fresh head, on a client that was never in training

    def __post_init__(self) -> None:
        if self.layers < 0:
            raise ValueError(f"layers={self.layers} should be at least 0")
        if self.tune_epochs < 1:
            raise ValueError(f"tune_epochs={self.tune_epochs} should be at least 1")
        if self.weights not in ("size", "uniform"):
            raise ValueError(f"weights={self.weights!r} should be 'size' or 'uniform'")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        tail(task, self.layers)  # a model of too few layers is refused before anybody trains
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        head = tail(cohort.task, self.layers)
        body = select(state.theta, [n for n in state.theta if n not in head])
        mean = MeanBy(repeat(body, 1), field="body", weights="n" if self.weights == "size" else None)
        cohort.run(self.train, {"body": body}, into=mean)
        return Single({**state.theta, **row(mean.result(), 0)})

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        kept = set(tail(task, self.layers))
        tensors = dict([*task.module.named_parameters(), *task.module.named_buffers()])
        body = sum(nbytes(t) for n, t in tensors.items() if n not in kept)
        return body, body + (4 if self.weights == "size" else 0)

    @on_client
    def train(self, me: Client, body: Tree) -> dict[str, Payload]:
        head = tail(me.task, self.layers)
        mine = me.tree("head") or select(me.task.init(me.key), head)
        theta = sgd(me, {**body, **mine}, self.local)
        me.keep_tree("head", select(theta, head))
        reply: dict[str, Payload] = {"body": select(theta, body)}
        return {**reply, "n": me.size} if self.weights == "size" else reply

    @on_client
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        head, kept = tail(me.task, self.layers), me.tree("head")
        if kept is not None or not head:
            return {"theta": {**theta, **(kept or {})}}
        # never in training: a fresh head, tuned on top of the body as it is
        fresh = {**theta, **select(me.task.init(me.key), head)}
        rule = replace(self.local, epochs=self.tune_epochs, steps=None)
        return {"theta": sgd(me, fresh, rule, only=tuple(n for n in head if n in me.task.params))}
