"""The loop: sample, round, measure. A simulation can be stopped and taken up between any two rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.callback import Callback, Moment, Stop
from clusterfl.cohort import Cohort, Engine, one_thread
from clusterfl.data.population import Population
from clusterfl.errors import NoReplies
from clusterfl.evaluate.served import cross, cross_personal, evaluate
from clusterfl.method import Method, NotDefined, Served
from clusterfl.metrics import Figures, clustering, intra_inter, top_rounds
from clusterfl.record import Outcome, Record, Schedule
from clusterfl.tree import rows

log = logging.getLogger(__name__)


class _Before(NamedTuple):
    """How things stood before a round."""

    time: float
    rejections: int


@dataclass
class Simulation:
    """A method on a population through an engine."""

    method: Method[Any]
    population: Population
    engine: Engine
    schedule: Schedule = field(default_factory=Schedule)
    state: Any = None
    round: int = 0
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = self.population.train.sizes[: self.population.clients]
        self.ids = torch.arange(self.population.clients)
        self.active = self.ids[sizes > 0]
        if len(self.active) < len(self.ids):
            empty = [self.population.names[i] for i in self.ids[sizes == 0].tolist()]
            log.warning("clients without training data take no part: %s", ", ".join(empty))
        if not len(self.active):
            raise ValueError("population should hold at least one client with training data, but none has any")
        self.root = keys.key(self.schedule.seed)
        self.measured = self._sample_of_clients(self.schedule.eval_clients)

    def _sample_of_clients(self, some: int | float | None) -> Tensor:
        """The clients that are measured, the same in every round: rounds can be compared."""
        n = len(self.ids)
        wanted = n if some is None else some if isinstance(some, int) else max(1, round(some * n))
        return self.ids if wanted >= n else keys.choice(keys.fold_in(self.root, "measured"), n, wanted)

    @property
    def sampled(self) -> bool:
        return len(self.measured) < len(self.ids)

    def _spread(self, values: Tensor) -> Tensor:
        """``[N]`` of what was measured, NaN for all others."""
        if not self.sampled:
            return values
        out = torch.full((len(self.ids), *values.shape[1:]), torch.nan, dtype=values.dtype)
        out[self.measured] = values
        return out

    def _served(self) -> Served:
        """What the clients that are measured use."""
        return self.method.serve(self.state, self.measured)

    # -- the loop --------------------------------------------------------------------------------------

    def run(self, callbacks: Sequence[Callback] = ()) -> Outcome:
        """Everything that is left, then the outcome."""
        try:
            if self.state is None:
                self.start()
            for callback in callbacks:
                callback.on_start(self.moment())
            while self.round < self.schedule.rounds:
                self.step()
                for callback in callbacks:
                    callback.on_round(self.moment())
        except Stop:
            log.info("round %d: a callback ended the run", self.round)
            self.measure_last()
        outcome = self.finish()
        for callback in callbacks:
            callback.on_end(self.moment(), outcome)
        return outcome

    def moment(self) -> Moment:
        records, metric = tuple(self.records), self.engine.task.metric
        return Moment(self.method, self.population, self.schedule, self.state, records[-1], records, metric)

    @one_thread()
    def start(self) -> Record:
        """The method's first state, and its record as round 0."""
        before = self._before()
        cohort = self.engine.cohort(self.ids, keys.fold_in(self.root, "init"))
        self.state = self.method.init(self.engine.task, cohort, keys.fold_in(self.root, "method"))
        return self._record(cohort.logged, before)

    @one_thread()
    def step(self) -> Record:
        """One round."""
        before = self._before()
        self.round += 1
        t = self.round
        asked = max(1, round(self.schedule.participation * len(self.active)))
        chosen = keys.choice(keys.fold_in(self.root, "sample", t), len(self.active), asked)
        key = keys.fold_in(self.root, "round", t)
        self._follow_drift(t)
        cohort = self.engine.cohort(self.active[chosen], key, t - 1)
        old = self.state
        try:
            self.state = self.method.round(self.state, cohort)
            self._note_stale(old, cohort)
        except NoReplies as e:
            log.warning("round %d leaves the state unchanged: %s", t, e)
            cohort.log(no_replies=1.0)
        return self._record(cohort.logged, before)

    def _before(self) -> _Before:
        return _Before(time.perf_counter(), self.engine.rejections())

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

    def _follow_drift(self, t: int) -> None:
        """Clients whose data changes at a given round have it changed before that round."""
        now = self.population.at(t)
        if now is not self.engine.population:
            self.engine.set_population(now)

    # -- measuring -------------------------------------------------------------------------------------

    def _record(self, logged: dict[str, float], before: _Before) -> Record:
        served = self.method.serve(self.state, self.ids)
        assign = self.records[-1].assign if self.records else served.clusters
        t, last = self.round, self.round == self.schedule.rounds
        measured = self.schedule.measured and (t % self.schedule.eval_every == 0 or last)
        scores = self._scores(last=last) if measured else {}
        record = Record(
            t,
            assign if self.records and torch.equal(served.clusters, assign) else served.clusters.clone(),
            scores,
            float((served.clusters != assign).double().mean()),
            self.engine.traffic.total_down,
            self.engine.traffic.total_up,
            logged,
            time.perf_counter() - before.time,
            self.engine.rejections() - before.rejections,
            self.engine.epsilon(),
            *(self._at_home_and_abroad() if measured and self.schedule.eval_inter else (None, None)),
            len(self.measured) if measured and self.sampled else None,
        )
        self.records.append(record)
        return record

    def _scores(self, *, last: bool) -> dict[str, Tensor]:
        """All metrics of the last round, those that cost little of the others."""
        key, task = keys.fold_in(self.root, "evaluate", self.round), self.engine.task
        metrics = task.metrics if last else None
        scores = evaluate(self.engine, self.method, self._served(), self.measured, key, self.round, metrics=metrics)
        found = {task.metric.name: scores.of(task.metric.name), **scores.by_name()}
        return {name: self._spread(values) for name, values in found.items()}

    @one_thread()
    def measure_last(self) -> None:
        """The last record, measured as the last round of a run is, where the run ended early."""
        if self.schedule.measured and not {m.name for m in self.engine.task.metrics} <= self.records[-1].scores.keys():
            sampled = len(self.measured) if self.sampled else None
            self.records[-1] = replace(self.records[-1], scores=self._scores(last=True), sampled=sampled)

    @one_thread()
    def finish(self) -> Outcome:
        """Measures what is measured only at the end: models at home and abroad, unseen clients."""
        last, metric = self.records[-1], self.engine.task.metric
        self._say_lost()
        self._follow_drift(self.round)
        served = self.method.serve(self.state, self.ids)
        sizes = self.population.train.sizes[: self.population.clients]
        impersonal, intra, inter, by_model = Figures.none(), float("nan"), None, None
        some = self._served()
        if self._compared(some):
            table = cross(self.engine, some.models, self.measured)
            impersonal = Figures.of(table.gather(1, some.index.unsqueeze(1)).squeeze(1), sizes[self.measured])
            by_data = some.by_data and not self.engine.far  # nobody may look at another's data on devices
            if by_data or not some.by_data:
                intra, inter = intra_inter(self._cross_by_data(some) if by_data else table, some.clusters)
            by_model = self._spread(table)
        truth = self.population.at(self.round).truth
        unseen, joined = self._admit()
        means = [float(r.score(metric.name)[self.measured].mean()) for r in self.records[1:] if r.measured]
        return Outcome(
            self.method,
            self.population,
            self.state,
            served,
            self.records,
            metric,
            {m.name: Figures.of(last.score(m.name), sizes, m) for m in self.engine.task.metrics},
            impersonal.mean,
            impersonal.weighted,
            top_rounds(means, metric=metric),
            None if truth is None else clustering(last.assign, truth[: self.population.clients]),
            int(last.assign.unique().numel()),
            intra,
            inter,
            unseen,
            None if joined is None else joined.clusters,
            self.engine.traffic.total_down,
            self.engine.traffic.total_up,
            sum(r.seconds for r in self.records),
            self.engine.spent() or self.method.spent(self.state),
            by_model,
            served.either() | {i + len(self.ids): where for i, where in (joined.either() if joined else {}).items()},
        )

    def _say_lost(self) -> None:
        lost = sum(r.lost for r in self.records)
        if lost:
            log.warning("in %d of %d rounds no sound reply came: the models stayed as they were", lost, self.round)

    def _compared(self, served: Served) -> bool:
        """Whether models are few enough to be tried on each other's clients: to each its own knows no abroad."""
        return self.schedule.measured and served.k <= len(self.ids) // 2 + 1

    def _at_home_and_abroad(self) -> tuple[float | None, float | None]:
        """Intra and inter accuracy of this round's models."""
        served = self._served()
        if not self._compared(served):
            return None, None
        table = self._cross_by_data(served) if served.by_data else cross(self.engine, served.models, self.measured)
        return intra_inter(table, served.index)

    def _cross_by_data(self, served: Served) -> Tensor:
        """``[m, K]``: what each client would use, on the data of each cluster that has clients."""
        key = keys.fold_in(self.root, "cross")
        table = torch.full((len(self.measured), served.k), torch.nan, dtype=torch.float64)
        table[:, served.index.unique()] = cross_personal(
            self.engine, self.method, served, self.measured, served.index, key, self.round
        )
        return table

    def _admit(self) -> tuple[Tensor | None, Served | None]:
        """The main metric of unseen clients, and how they are served."""
        if not self.population.unseen:
            return None, None
        ids = torch.arange(self.population.clients, len(self.population.train))
        cohort = self.engine.cohort(ids, keys.fold_in(self.root, "admit"), self.round)
        try:
            served = self.method.admit(self.state, cohort)
        except (NotDefined, NoReplies) as e:
            log.warning("unseen clients are not measured: %s", e)
            return None, None
        if not self.schedule.measured:
            return None, served
        scores = evaluate(self.engine, self.method, served, ids, keys.fold_in(self.root, "unseen"), self.round)
        return scores.of(self.engine.task.metric.name), served
