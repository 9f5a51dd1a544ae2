"""A node's side: it has its data, what it keeps, and this program; it gets only messages and answers each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from clusterfl.call import Call, take_row
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.chunks import stack_fields
from clusterfl.engines.flower.messages import (
    Answer,
    Delivery,
    Failure,
    Hello,
    Introduction,
    Place,
    Problem,
    Reading,
    Receipt,
    Reply,
    Request,
)
from clusterfl.engines.serial import Serial
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.errors import ClientError, ClusterflError, DataError
from clusterfl.evaluate.procedures import row_scores
from clusterfl.models import build_model
from clusterfl.outside import is_outside, only, own_copy
from clusterfl.task import Task
from clusterfl.tree import Tree, is_finite

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnData:
    """What one node holds; labels are row numbers into its own ``classes``, or numbers where there are none."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()  # of features, where they are a table's
    words: tuple[tuple[str, ...], ...] = ()  # of each column of words

    def renamed(self, classes: tuple[str, ...]) -> OwnData:
        """The same data with labels as numbers of the classes that all nodes agreed on."""
        if not self.classes and not classes:  # numbers
            return self
        place = {name: j for j, name in enumerate(classes)}
        used = torch.cat([self.y_train, self.y_test]).unique().tolist()
        unknown = [self.classes[j] for j in used if self.classes[j] not in place]
        if unknown:
            raise DataError(f"its classes {unknown} should be among those agreed on: {', '.join(classes)}")
        table = torch.tensor([place.get(name, -1) for name in self.classes], dtype=torch.int64)
        return replace(self, y_train=table[self.y_train], y_test=table[self.y_test], classes=classes)


class Store(Protocol):
    """What a node keeps, on its own disk."""

    def kept(self, place: Place, token: int) -> Tree:
        """What it kept before the request ``token`` at ``place``, which may be asked for a second time."""
        ...

    def keep(self, place: Place, token: int, before: Tree, state: Tree) -> None:
        """Keeps ``state`` in place of ``before``, unless the request ``token`` turns out not to count."""
        ...

    def serving(self) -> tuple[int, Tree] | None:
        """The version that it serves, and its model."""
        ...

    def serve(self, cluster: int, version: int, theta: Tree) -> None: ...


@dataclass
class Node:
    """Answers the server's messages for one client."""

    name: str
    load: Callable[[Reading], OwnData]
    store: Store
    least: int = 2  # with fewer training samples it declines
    code: tuple[str, ...] = ()  # models and methods beside the library's that it may run, as file.py:Name

    def answer(self, message: bytes) -> bytes:
        """The answer to a message, as bytes; ValueError where the message is none."""
        with only(self.code):
            asked = codec.unpack(message)
            if not isinstance(asked, Hello | Request | Delivery):
                raise ValueError("a node should be sent a hello, a request or a delivery")
            return codec.pack(self._answer(asked))

    def _answer(self, asked: Hello | Request | Delivery) -> Answer:
        try:
            if asked.name != self.name:
                raise ClusterflError(f"the message is for node {asked.name!r}, but this is {self.name!r}")
            if isinstance(asked, Hello):
                return self._introduce(asked)
            if isinstance(asked, Delivery):
                return self._receive(asked)
            return self._run(asked)
        except (ClusterflError, ClientError) as e:
            log.warning("%s", e)
            return Failure(asked.token, " ".join(str(e).split()))

    def _introduce(self, hello: Hello) -> Introduction:
        data = self.load(hello.reading)
        n, shape = len(data.y_train), tuple(data.x_train.shape[1:])
        few = f"it holds {n} training samples, and takes part from {self.least} on" if n < self.least else ""
        targets = () if data.classes else tuple(data.y_train.shape[1:])
        sizes = n, len(data.y_test)
        return Introduction(hello.token, *sizes, shape, data.classes, few, targets, data.columns, data.words)

    def _run(self, r: Request) -> Reply:
        return Reply(r.token, self._fields(r))

    def _fields(self, r: Request) -> dict[str, Any]:
        """What the procedure returns; what it keeps is on the disk before anything leaves."""
        population, task = self._problem(r.problem, r.reading, r.client)
        engine = Serial(task, population)
        before = self.store.kept(r.place, r.token)
        engine.set_states({r.client: before})
        around: BaseEngine = engine
        privacy = PrivacyConfig(**r.problem.privacy)
        if privacy.on:  # cut and blurred here, before anything leaves the node
            around = Private(engine, privacy)
        each = {n: stack_fields([{n: v}])[n] for n, v in r.each.items()}
        ids = torch.tensor([r.client])
        call = Call(r.method, r.procedure, ids, r.shared, each, r.key, r.round, measure=r.measure)
        if not hasattr(getattr(r.method, r.procedure, None), "__on_client__"):
            raise ClusterflError(f"{call.label} should be a procedure that is declared for clients")
        fields: dict[str, Any] = {}
        for chunk in around.execute(call):
            fields = {n: take_row(v, 0) for n, v in chunk.fields.items()}
        after = engine.states()[r.client]
        if after is not before:
            if not is_finite(after):
                raise ClusterflError(f"{call.label}: what it keeps is not finite")
            self.store.keep(r.place, r.token, before, after)
        return fields

    def _receive(self, d: Delivery) -> Receipt:
        """Scores a cluster's model on the node's own test data and, unless it is on trial, puts it into service."""
        population, task = self._problem(d.request.problem, d.request.reading, d.request.client)
        theta, old = self._fields(d.request)["theta"], self.store.serving()

        def total(theta: Tree) -> float:
            with torch.no_grad():
                scores = row_scores(task, theta, population.test.x, population.test.y)
            return float(scores["correct"].sum() if "correct" in scores else -scores["loss"].sum())

        serving, now = (-1, 0.0) if old is None else (old[0], total(old[1]))
        receipt = Receipt(d.token, len(population.test.y), total(theta), serving, now)
        if not d.trial:
            self.store.serve(d.cluster, d.version, theta)
        return receipt

    def _problem(self, problem: Problem, reading: Reading, client: int) -> tuple[Population, Task]:
        data = self.load(reading).renamed(problem.classes)
        if tuple(data.x_train.shape[1:]) != problem.input_shape:
            raise DataError(
                f"its samples have shape {list(data.x_train.shape[1:])} and should have {list(problem.input_shape)}"
            )
        train, test = (_only(client, *part) for part in ((data.x_train, data.y_train), (data.x_test, data.y_test)))
        classes = len(problem.classes)
        module = build_model(
            self._own(problem.model), problem.input_shape, problem.outputs, regression=not classes, **problem.params
        )
        return Population(train, test, client + 1, classes), Task(module, classes, **problem.task)

    def _own(self, model: str) -> str:
        """The model's name here. Code that is not the library's is the node's own copy: no message brings any."""
        return own_copy(model, self.code) if is_outside(model) else model


def _only(client: int, x: Tensor, y: Tensor) -> Shards:
    """Shards in which one client holds all there is, under its own number, and those before it nothing."""
    offsets = torch.zeros(client + 2, dtype=torch.int64)
    offsets[-1] = len(y)
    return Shards(x, y, torch.arange(len(y)), offsets)
