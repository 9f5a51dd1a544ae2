"""Local: every client trains alone. The row that must be in every table, for it often wins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.errors import NoReplies
from clusterfl.keys import Key
from clusterfl.message import Kept, Payload, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Local(Method[Single]):
    """No exchange: each client draws and keeps its own model."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "every client trains alone; nothing is exchanged"
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        cohort.run(self.train)
        return state

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        for t in range(cohort.round):  # as many rounds as the run had, lost ones included
            with suppress(NoReplies):
                cohort.in_round(t).run(self.train)
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return 0, 0

    @on_client(theta=Kept())
    def train(self, me: Client) -> dict[str, Payload]:
        me.keep_tree("theta", sgd(me, me.tree("theta") or me.task.init(me.key), self.local))
        return {}

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": me.tree("theta") or theta}
