"""FedPer (Arivazhagan et al., 2019): the body is averaged, the head never leaves its client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import Weights, bytes_of, mean_of, reply
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, nbytes, select


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
    clustered: ClassVar[bool] = False
    needs = ("hidden layer",)
    sums: ClassVar[bool] = True

    local: SGD = SGD()
    layers: int = option(1, "the last layers that stay on the client (the classifier); 0 is FedAvg")
    weights: Weights = option("size", "how much a client counts in the mean")
    tune_epochs: int = option(5, "epochs of a fresh head, on a client that was never in training")

    def __post_init__(self) -> None:
        at_least(0, self, "layers")
        at_least(1, self, "tune_epochs")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        tail(task, self.layers)  # a model of too few layers is refused before anybody trains
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        head = tail(cohort.task, self.layers)
        body = select(state.theta, [n for n in state.theta if n not in head])
        mean = mean_of(cohort, self.train, {"body": body}, body, self.weights, field="body")
        return Single({**state.theta, **mean})

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        kept = set(tail(task, self.layers))
        tensors = dict([*task.module.named_parameters(), *task.module.named_buffers()])
        body = sum(nbytes(t) for n, t in tensors.items() if n not in kept)
        return body, body + bytes_of(self.weights)

    @on_client(body=Model(of="body"), n=Weight(), head=Kept("its head"))
    def train(self, me: Client, body: Tree) -> dict[str, Payload]:
        head = tail(me.task, self.layers)
        mine = me.tree("head") or select(me.task.init(me.key), head)
        theta = sgd(me, {**body, **mine}, self.local)
        me.keep_tree("head", select(theta, head))
        return reply(me, self.weights, body=select(theta, body))

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        head, kept = tail(me.task, self.layers), me.tree("head")
        if kept is not None or not head:
            return {"theta": {**theta, **(kept or {})}}
        # never in training: a fresh head, tuned on top of the body as it is
        fresh = {**theta, **select(me.task.init(me.key), head)}
        rule = replace(self.local, epochs=self.tune_epochs, steps=None)
        return {"theta": sgd(me, fresh, rule, only=tuple(n for n in head if n in me.task.params))}
