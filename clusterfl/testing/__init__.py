"""The conformance suite: what every method must hold, in every engine.

>>> from clusterfl.methods import FedAvg
>>> from clusterfl.testing import check_method
>>> check_method(FedAvg())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clusterfl import codec, keys
from clusterfl.data.population import Population, Shards
from clusterfl.engines import Flaky, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.method import Method, NotDefined, Served
from clusterfl.task import Task

EngineMaker = Callable[[Task, Population], BaseEngine]

CLIENTS, UNSEEN, CLUSTERS, CLASSES, WIDTH = 12, 2, 2, 3, 6


def small_task() -> Task:
    """A small network with two layers, so that there is a body and a head."""
    task = Task(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES)), CLASSES)
    indicators = small_population().indicators
    task.public = None if indicators is None else indicators[0]
    return task


def small_population(seed: int = 0, *, ragged: bool = True) -> Population:
    """Two hidden groups: the same three blobs with labels in another order. Sizes differ if ``ragged``."""
    key = keys.key(seed)
    centers = 2.5 * keys.normal(keys.fold_in(key, "centers"), CLASSES, WIDTH)
    total = CLIENTS + UNSEEN
    truth = torch.arange(total) % CLUSTERS
    sides = []
    for side, base in (("train", 24), ("test", 15)):
        parts = []
        for i in range(total):
            n = base + (5 * (i % 3) if ragged else 0)
            k = keys.fold_in(key, side, i)
            y = torch.arange(n) % CLASSES
            x = centers[y] + keys.normal(k, n, WIDTH)
            parts.append((x, (y + int(truth[i])) % CLASSES))
        sides.append(Shards.from_parts(parts))
    indicators = (centers + 0.1, torch.arange(CLASSES))
    return Population(sides[0], sides[1], CLIENTS, CLASSES, name="small", truth=truth, indicators=indicators)


def play(
    method: Method[Any],
    engine: BaseEngine,
    rounds: int = 2,
    *,
    order: Tensor | None = None,
    some: float = 1.0,
    state: Any = None,
) -> Any:
    """The method's state after some rounds, without any measuring."""
    ids, root = torch.arange(engine.clients), keys.key(7)
    if state is None:
        state = method.init(engine.task, engine.cohort(ids, keys.fold_in(root, "init")), root)
    for t in range(rounds):
        chosen = keys.choice(keys.fold_in(root, "sample", t), len(ids), max(1, round(some * len(ids))))
        if order is not None:
            chosen = order[chosen]
        state = method.round(state, engine.cohort(ids[chosen], keys.fold_in(root, "round", t), t))
    return state


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state, with the path to it."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, v in value.items():
            yield from tensors(v, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for j, v in enumerate(value):
            yield from tensors(v, f"{path}[{j}]")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from tensors(getattr(value, f.name), f"{path}.{f.name}")


def assert_equal(a: Any, b: Any, what: str) -> None:
    """The same tensors bit for bit."""
    left, right = dict(tensors(a)), dict(tensors(b))
    assert left.keys() == right.keys(), f"{what}: different fields {left.keys() ^ right.keys()}"
    for path, t in left.items():
        assert t.dtype == right[path].dtype, f"{what}: {path} changed its dtype"
        assert torch.equal(t, right[path]) or (
            t.is_floating_point() and torch.equal(t.nan_to_num(), right[path].nan_to_num())
        ), f"{what}: {path} differs by up to {(t.double() - right[path].double()).abs().max():g}"


def assert_close(a: Any, b: Any, what: str, tolerance: float = 1e-5) -> None:
    """Integers equal, floats within the tolerance (relative to the largest entry, if that is above 1)."""
    left, right = dict(tensors(a)), dict(tensors(b))
    assert left.keys() == right.keys(), f"{what}: different fields {left.keys() ^ right.keys()}"
    for path, t in left.items():
        other = right[path]
        if t.is_floating_point():
            scale = max(1.0, float(t.abs().max())) if t.numel() else 1.0
            gap = float((t - other).abs().max()) if t.numel() else 0.0
            assert gap <= tolerance * scale, f"{what}: {path} differs by {gap:g}"
        else:
            assert torch.equal(t, other), f"{what}: {path} differs"


def check_method(
    method: Method[Any],
    *,
    engines: Mapping[str, EngineMaker] | None = None,
    counterpart: Method[Any] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Raises AssertionError, with a sentence, where the method breaks a rule.

    ``engines`` are compared with serial bit for bit, beside wire (a pool, say). ``counterpart`` is what the
    method should equal, bit for bit, when it has one cluster; it is compared on the models they serve.
    """
    task, population = small_task(), small_population()
    ids = torch.arange(CLIENTS)
    serial = Serial(task, population)
    reference = play(method, serial)
    served = method.serve(reference, ids)
    _check_served(method, served, ids)
    scores = serial.evaluate(method, served, ids, keys.key(3))

    exact: dict[str, EngineMaker] = {"wire": Wire, **(engines or {})}
    for name, make in exact.items():
        engine = make(task, population)
        try:
            engine.set_states({})
            assert_equal(reference, play(method, engine), f"{method.name}: {name} and serial")
            assert_equal(scores, engine.evaluate(method, served, ids, keys.key(3)), f"{method.name}: {name} scores")
        finally:
            engine.close()
    stacked = Stacked(task, population)
    assert_close(reference, play(method, stacked), f"{method.name}: stacked and serial", tolerance)
    assert_close(dict(serial.states()), dict(stacked.states()), f"{method.name}: kept state", 10 * tolerance)

    again = codec.unpack(codec.pack(reference))
    assert type(again) is type(reference), f"{method.name}: its state does not come back from bytes"
    assert_equal(reference, again, f"{method.name}: state after a round trip")
    assert codec.unpack(codec.pack(method)) == method, f"{method.name}: it does not come back from bytes"

    _check_survival(method, task, population)
    backwards = play(method, Serial(task, population), order=torch.arange(CLIENTS).flip(0))
    # sums go in the order of the cohort, so floats may differ in their last bits
    assert_close(reference, backwards, f"{method.name}: clients in another order", 100 * tolerance)
    _check_cost(method, task, population, reference)
    _check_admit(method, serial, reference)
    _check_blind(method, task, population, reference)
    if counterpart is not None:
        check_same(method, counterpart)


def check_same(method: Method[Any], counterpart: Method[Any], rounds: int = 2) -> None:
    """Two methods serve every client the same model, bit for bit."""
    task, population, ids = small_task(), small_population(), torch.arange(CLIENTS)
    ours, other = (m.serve(play(m, Serial(task, population), rounds), ids) for m in (method, counterpart))
    for i in ids.tolist():
        mine, theirs = ({n: t[int(s.index[i])] for n, t in s.models.items()} for s in (ours, other))
        assert_equal(mine, theirs, f"{method.name} and its counterpart {counterpart.name}")


def _check_served(method: Method[Any], served: Served, ids: Tensor) -> None:
    assert served.index.shape == ids.shape, f"{method.name}: serve should give one model per client"
    assert served.index.dtype == torch.int64, f"{method.name}: serve's index should be int64"
    assert int(served.index.min()) >= 0 and int(served.index.max()) < served.k, f"{method.name}: index range"


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
        _check_served(method, method.serve(state, ids), ids)
    # everybody of one cluster vanishes after the start: its model stays as it was
    start = method.init(task, Serial(task, population).cohort(ids, keys.key(1)), keys.key(7))
    before = method.serve(start, ids)
    gone = frozenset(i for i in ids.tolist() if int(before.index[i]) == int(before.index[0]))
    if 0 < len(gone) < CLIENTS and method.clustered:
        engine = Flaky(Serial(task, population), 0.0, gone)
        after = method.serve(play(method, engine, rounds=1, state=start), ids)
        _check_served(method, after, ids)
        for name, t in after.models.items():
            assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{method.name}: empty, {name}"


def _check_cost(method: Method[Any], task: Task, population: Population, state: Any) -> None:
    engine = Serial(task, population)
    state = play(method, engine)
    down, up = engine.traffic.total_down, engine.traffic.total_up
    play(method, engine, rounds=1, state=state)
    metered = engine.traffic.total_down - down, engine.traffic.total_up - up
    formula = tuple(CLIENTS * c for c in method.cost(task))
    assert metered == formula, f"{method.name}: metered (down, up) {metered}, the formula says {formula}"


def _check_blind(method: Method[Any], task: Task, population: Population, reference: Any) -> None:
    """Test data is for measuring alone: neither training nor a newcomer's place may depend on it."""
    test = population.test
    other = Shards(-test.x, (test.y + 1) % CLASSES, test.rows, test.offsets)
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
    _check_served(method, served, ids)
    scores = engine.evaluate(method, served, ids, keys.key(12), 2)
    assert bool(torch.isfinite(scores).all()), f"{method.name}: admitted clients should have scores"
