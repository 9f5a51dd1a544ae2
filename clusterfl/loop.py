"""The loop: sample, round, measure. A simulation can be stopped and taken up between any two rounds."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Cohort
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine, Spent
from clusterfl.engines.worker import one_thread
from clusterfl.errors import NoReplies
from clusterfl.method import Method, NotDefined, Served, State
from clusterfl.metrics import Accuracy, Clustering, clustering, intra_inter, top_rounds
from clusterfl.tree import rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """How long, how many at a time, how often measured."""

    rounds: int = 20
    participation: float = 1.0
    seed: int = 0
    eval_every: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise ValueError(f"rounds={self.rounds} should be at least 0")
        if not 0.0 < self.participation <= 1.0:
            raise ValueError(f"participation={self.participation} should be above 0 and at most 1")
        if self.eval_every < 1:
            raise ValueError(f"eval_every={self.eval_every} should be at least 1")


@dataclass(frozen=True)
class Record(State):
    """One round, measured."""

    round: int  # 0 is the state before the first round
    assign: Tensor  # [N]: the served model of each client
    accuracy: Tensor  # [N], NaN where not measured this round
    loss: Tensor  # [N]
    moved: float  # share of clients whose cluster changed
    bytes_down: int  # so far
    bytes_up: int
    logged: dict[str, float]
    seconds: float  # this round's, evaluation included
    rejected: int = 0  # replies that were turned down in this round
    epsilon: float | None = None  # privacy spent so far, if it is accounted
    f1: Tensor | None = None  # [N]: each client's mean F1 over classes; of the last round only

    @property
    def measured(self) -> bool:
        return not bool(self.accuracy.isnan().all())


@dataclass(frozen=True)
class Outcome:
    """Where a run ended."""

    method: Method[Any]
    state: State
    served: Served
    records: list[Record]
    accuracy: Accuracy
    f1: Accuracy  # the same figures of the clients' F1
    global_accuracy: float  # the served model before personalisation
    global_weighted: float  # the same, over all clients' samples together
    top5_rounds: float
    clusters: Clustering | None
    clusters_found: int
    intra: float
    inter: float | None
    unseen: Tensor | None  # accuracy of each unseen client
    unseen_assign: Tensor | None
    bytes_down: int
    bytes_up: int
    seconds: float
    spent: Spent | None = None  # privacy, newcomers included


class _Began(NamedTuple):
    """How things stood before a round."""

    time: float
    rejections: int


@dataclass
class Simulation:
    """A method on a population through an engine."""

    method: Method[Any]
    population: Population
    engine: BaseEngine
    schedule: Schedule = field(default_factory=Schedule)
    state: Any = None
    round: int = 0
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = self.population.train.sizes[: self.population.clients]
        self.ids = torch.arange(self.population.clients)
        self.active = self.ids[sizes > 0]
        if len(self.active) < len(self.ids):
            empty = self.ids[sizes == 0].tolist()
            log.warning("clients without training data take no part: %s", empty)
        if not len(self.active):
            raise ValueError("clients=0 with training data: at least one should have some")
        self.root = keys.key(self.schedule.seed)

    @one_thread()
    def start(self) -> Record:
        """The method's first state, and its record as round 0."""
        began = _Began(time.perf_counter(), self.engine.rejections())
        cohort = self.engine.cohort(self.ids, keys.fold_in(self.root, "init"))
        self.state = self.method.init(self.engine.task, cohort, keys.fold_in(self.root, "method"))
        return self._record(cohort.logged, began)

    @one_thread()
    def step(self) -> Record:
        """One round."""
        began = _Began(time.perf_counter(), self.engine.rejections())
        self.round += 1
        t = self.round
        asked = max(1, round(self.schedule.participation * len(self.active)))
        chosen = keys.choice(keys.fold_in(self.root, "sample", t), len(self.active), asked)
        key = keys.fold_in(self.root, "round", t)
        self._hold(t)
        cohort = self.engine.cohort(self.active[chosen], key, t - 1)
        before = self.state
        try:
            self.state = self.method.round(self.state, cohort)
            self._note_stale(before, cohort)
        except NoReplies as e:
            log.warning("round %d leaves the state unchanged: %s", t, e)
            cohort.log(no_replies=1.0)
        return self._record(cohort.logged, began)

    def _note_stale(self, before: Any, cohort: Cohort) -> None:
        """Clusters whose model nobody moved in this round."""
        if not self.method.clustered:
            return
        old, new = self.method.serve(before, self.ids).models, self.method.serve(self.state, self.ids).models
        same = [
            j for j in range(min(rows(old), rows(new))) if all(torch.equal(t[j], new[n][j]) for n, t in old.items())
        ]
        if same:
            log.info("round %d: nobody moved the models of clusters %s", self.round, same)
        cohort.log(stale=len(same))

    def _hold(self, t: int) -> None:
        """Clients whose data changes at a given round have it changed before that round."""
        now = self.population.at(t)
        if now is not self.engine.holds:
            self.engine.hold(now)

    def run(self) -> Outcome:
        """Everything that is left, then the outcome."""
        if self.state is None:
            self.start()
        while self.round < self.schedule.rounds:
            self.step()
        return self.finish()

    @one_thread()
    def finish(self) -> Outcome:
        """Measures what is measured only at the end: intra and inter accuracy, unseen clients."""
        last = self.records[-1]
        self._hold(self.round)
        served = self.method.serve(self.state, self.ids)
        sizes = self.population.train.sizes[: self.population.clients]
        cross = self.engine.cross(served.models, self.ids) if served.k <= len(self.ids) // 2 + 1 else None
        if cross is None:
            intra, inter = float("nan"), None
            impersonal = Accuracy.of(torch.full_like(last.accuracy, torch.nan), sizes)
        else:
            intra, inter = intra_inter(cross, served.index)
            impersonal = Accuracy.of(cross.gather(1, served.index.unsqueeze(1)).squeeze(1), sizes)
            if served.everywhere:
                homes = [last.accuracy[served.index == j].mean() for j in served.index.unique()]
                intra = inter = float(torch.stack(homes).mean())
        truth = self.population.at(self.round).truth
        unseen, unseen_assign = self._admit()
        means = [float(r.accuracy.mean()) for r in self.records[1:] if r.measured]
        return Outcome(
            self.method,
            self.state,
            served,
            self.records,
            Accuracy.of(last.accuracy, sizes),
            Accuracy.of(torch.full_like(last.accuracy, torch.nan) if last.f1 is None else last.f1, sizes),
            impersonal.mean,
            impersonal.weighted,
            top_rounds(means),
            None if truth is None else clustering(last.assign, truth[: self.population.clients]),
            int(last.assign.unique().numel()),
            intra,
            inter,
            unseen,
            unseen_assign,
            self.engine.traffic.total_down,
            self.engine.traffic.total_up,
            sum(r.seconds for r in self.records),
            self.engine.spent(),
        )

    def _admit(self) -> tuple[Tensor | None, Tensor | None]:
        if not self.population.unseen:
            return None, None
        ids = torch.arange(self.population.clients, len(self.population.train))
        cohort = self.engine.cohort(ids, keys.fold_in(self.root, "admit"), self.round)
        try:
            served = self.method.admit(self.state, cohort)
        except (NotDefined, NoReplies) as e:
            log.warning("unseen clients are not measured: %s", e)
            return None, None
        scores = self.engine.evaluate(self.method, served, ids, keys.fold_in(self.root, "unseen"), self.round)
        return scores[:, 0] / scores[:, 2], served.index

    def _record(self, logged: dict[str, float], began: _Began) -> Record:
        served = self.method.serve(self.state, self.ids)
        before = self.records[-1].assign if self.records else served.index
        t, last = self.round, self.round == self.schedule.rounds
        f1 = None
        if t % self.schedule.eval_every == 0 or last:
            key = keys.fold_in(self.root, "evaluate", t)
            scores = self.engine.evaluate(self.method, served, self.ids, key, t, f1=last)
            accuracy, loss = scores[:, 0] / scores[:, 2], scores[:, 1] / scores[:, 2]
            f1 = scores[:, 3].clone() if last else None
        else:
            accuracy = loss = torch.full((len(self.ids),), torch.nan, dtype=torch.float64)
        record = Record(
            t,
            served.index.clone(),
            accuracy,
            loss,
            float((served.index != before).double().mean()),
            self.engine.traffic.total_down,
            self.engine.traffic.total_up,
            logged,
            time.perf_counter() - began.time,
            self.engine.rejections() - began.rejections,
            self.engine.epsilon(),
            f1,
        )
        self.records.append(record)
        return record
