"""The conformance suite: what every method must hold, in every engine.

>>> from clusterfl.methods import FedAvg
>>> from clusterfl.testing import check_method
>>> check_method(FedAvg())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial, Stacked, Wire, codec
from clusterfl.engines.base import BaseEngine
from clusterfl.evaluate.served import evaluate
from clusterfl.method import Method, NotDefined, exchanged
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close, assert_equal, assert_served, tensors
from clusterfl.testing.small import CLASSES, CLIENTS, UNSEEN, Kind, play, small_population, small_task
from clusterfl.testing.wrapped import check_sums, check_wrapped

EngineMaker = Callable[[Task, Population], BaseEngine]


def check_method(
    method: Method[Any],
    *,
    kind: Kind = "classification",
    engines: Mapping[str, EngineMaker] | None = None,
    counterpart: Method[Any] | None = None,
    tolerance: float = 1e-5,
    settled: int = 2,
) -> None:
    """Raises AssertionError, with a sentence, where the method breaks a rule.

    ``kind`` is what it learns on: classes, or numbers under squared errors. ``engines`` are compared with serial bit
    for bit, beside wire (a pool, say). ``counterpart`` is what the method should equal, bit for bit, when it has one
    cluster; it is compared on the models they serve. After ``settled`` rounds a round's traffic is what the method's
    ``cost`` says.
    """
    task, population = small_task(kind), small_population(kind=kind)
    ids = torch.arange(CLIENTS)
    serial = Serial(task, population)
    reference = play(method, serial)
    served = method.serve(reference, ids)
    assert_served(method, served, ids)
    scores = evaluate(serial, method, served, ids, keys.key(3))

    exact: dict[str, EngineMaker] = {"wire": Wire, **(engines or {})}
    for name, make in exact.items():
        engine = make(task, population)
        try:
            engine.set_states({})
            assert_equal(reference, play(method, engine), f"{method.name}: {name} and serial")
            again = evaluate(engine, method, served, ids, keys.key(3))
            assert_equal(scores, again, f"{method.name}: {name} scores")
        finally:
            engine.close()
    stacked = Stacked(task, population)
    assert_close(reference, play(method, stacked), f"{method.name}: stacked and serial", tolerance)
    assert_close(dict(serial.states()), dict(stacked.states()), f"{method.name}: kept state", 10 * tolerance)

    back = codec.unpack(codec.pack(reference))
    assert type(back) is type(reference), f"{method.name}: its state does not come back from bytes"
    assert_equal(reference, back, f"{method.name}: state after a round trip")
    assert codec.unpack(codec.pack(method)) == method, f"{method.name}: it does not come back from bytes"

    _check_declared(method, serial)
    _check_survival(method, task, population)
    check_wrapped(method, task, population)
    check_sums(method, task, population)
    backwards = play(method, Serial(task, population), order=torch.arange(CLIENTS).flip(0))
    # sums go in the order of the cohort, so floats may differ in their last bits
    assert_close(reference, backwards, f"{method.name}: clients in another order", 100 * tolerance)
    _check_cost(method, task, population, settled)
    _check_admit(method, serial, reference)
    _check_blind(method, task, population, reference)
    if counterpart is not None:
        check_same(method, counterpart, kind=kind)


def check_same(
    method: Method[Any], counterpart: Method[Any], rounds: int = 2, *, kind: Kind = "classification"
) -> None:
    """Two methods serve every client the same model, bit for bit."""
    task, population, ids = small_task(kind), small_population(kind=kind), torch.arange(CLIENTS)
    ours, other = (m.serve(play(m, Serial(task, population), rounds), ids) for m in (method, counterpart))
    for i in ids.tolist():
        mine, theirs = ({n: t[int(s.index[i])] for n, t in s.models.items()} for s in (ours, other))
        assert_equal(mine, theirs, f"{method.name} and its counterpart {counterpart.name}")


def _check_declared(method: Method[Any], engine: BaseEngine) -> None:
    """Every procedure that clients were asked to run is one that the method says it runs, so that what leaves a client
    can be told before anything runs."""
    known = exchanged(method)
    unknown = sorted(set(engine.traffic.up) - known.keys())
    assert not unknown, f"{method.name}: it runs {', '.join(unknown)}, which should be in its class variable `runs`"


def _check_survival(method: Method[Any], task: Task, population: Population) -> None:
    """Few clients, drop-outs, a whole cluster gone: the state stays finite and the served models exist."""
    ids = torch.arange(CLIENTS)
    plans: dict[str, tuple[BaseEngine, float]] = {
        "half a cohort": (Serial(task, population), 0.5),
        "one client": (Serial(task, population), 1.0 / CLIENTS),
        "drop-outs": (Flaky(Serial(task, population), 0.3), 1.0),
    }
    for what, (engine, some) in plans.items():
        state = play(method, engine, rounds=3, some=some)
        for path, t in tensors(state):
            assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{method.name}, {what}: {path}"
        assert_served(method, method.serve(state, ids), ids)
    # everybody of one cluster vanishes after the start: its model stays as it was
    start = method.init(task, Serial(task, population).cohort(ids, keys.key(1)), keys.key(7))
    before = method.serve(start, ids)
    gone = frozenset(i for i in ids.tolist() if int(before.index[i]) == int(before.index[0]))
    if 0 < len(gone) < CLIENTS and method.clustered:
        engine = Flaky(Serial(task, population), 0.0, gone)
        after = method.serve(play(method, engine, rounds=1, state=start), ids)
        assert_served(method, after, ids)
        for name, t in after.models.items():
            assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{method.name}: empty, {name}"


def _check_cost(method: Method[Any], task: Task, population: Population, settled: int) -> None:
    engine = Serial(task, population)
    state = play(method, engine, rounds=settled)
    down, up = engine.traffic.total_down, engine.traffic.total_up
    play(method, engine, rounds=1, state=state)
    metered = engine.traffic.total_down - down, engine.traffic.total_up - up
    formula = tuple(CLIENTS * c for c in method.cost(task))
    assert metered == formula, f"{method.name}: metered (down, up) {metered}, the formula says {formula}"


def _check_blind(method: Method[Any], task: Task, population: Population, reference: Any) -> None:
    """Test data is for measuring alone: neither training nor a newcomer's place may depend on it."""
    test = population.test
    other = Shards(-test.x, test.y + 1.0 if task.regression else (test.y + 1) % CLASSES, test.rows, test.offsets)
    engine = Serial(task, dataclasses.replace(population, test=other))
    assert_equal(reference, play(method, engine), f"{method.name}: with other test data")
    ids = torch.arange(CLIENTS, CLIENTS + UNSEEN)
    try:
        ours, theirs = (
            method.admit(reference, e.cohort(ids, keys.key(11), 2)).index for e in (Serial(task, population), engine)
        )
    except NotDefined:
        return
    assert_equal(ours, theirs, f"{method.name}: places of newcomers with other test data")


def _check_admit(method: Method[Any], engine: BaseEngine, state: Any) -> None:
    ids = torch.arange(CLIENTS, CLIENTS + UNSEEN)
    try:
        served = method.admit(state, engine.cohort(ids, keys.key(11), 2))
    except NotDefined:
        return
    assert_served(method, served, ids)
    scores = evaluate(engine, method, served, ids, keys.key(12), 2)
    assert bool(scores.of(engine.task.metric.name).isfinite().all()), (
        f"{method.name}: admitted clients should have scores"
    )
