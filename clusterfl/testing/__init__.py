"""The conformance suite: what every method must hold, in every engine.

>>> from clusterfl.methods import FedAvg
>>> from clusterfl.testing import check_method
>>> check_method(FedAvg())
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population, Shards
from clusterfl.engines import Flaky, Serial, Stacked, Wire, codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.engines.wrappers.attack import Attack, AttackConfig
from clusterfl.engines.wrappers.clip import Clip
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.evaluate.served import evaluate
from clusterfl.message import Call, Chunk, Cluster, Gradient, Model, Weight, join, take_row
from clusterfl.method import Method, NotDefined, Served, exchanged
from clusterfl.task import Task
from clusterfl.tree import Tree, row, rows, vector

EngineMaker = Callable[[Task, Population], BaseEngine]

Kind = Literal["classification", "regression"]

CLIENTS, UNSEEN, CLUSTERS, CLASSES, WIDTH = 12, 2, 2, 3, 6


def small_task(kind: Kind = "classification") -> Task:
    """A small network with two layers, so that there is a body and a head."""
    if kind == "regression":
        return Task(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1)), loss="mse")
    indicators = small_population().indicators
    module = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    return Task(module, CLASSES, public=None if indicators is None else indicators[0])


def small_population(seed: int = 0, *, ragged: bool = True, kind: Kind = "classification") -> Population:
    """Two hidden groups: the same three blobs with labels in another order, or two linear maps of the same inputs.
    Sizes differ if ``ragged``."""
    key, classes = keys.key(seed), CLASSES if kind == "classification" else 0
    maps = keys.normal(keys.fold_in(key, "maps"), CLUSTERS, WIDTH)
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
            if classes:
                parts.append((x, (y + int(truth[i])) % CLASSES))
            else:
                parts.append((x / 3.0, x @ maps[truth[i]] / 9.0 + 0.1 * keys.normal(keys.fold_in(k, "noise"), n)))
        sides.append(Shards.from_parts(parts))
    indicators = (centers + 0.1, torch.arange(CLASSES)) if classes else None
    return Population(sides[0], sides[1], CLIENTS, classes, name="small", truth=truth, indicators=indicators)


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
    kind: Kind = "classification",
    engines: Mapping[str, EngineMaker] | None = None,
    counterpart: Method[Any] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Raises AssertionError, with a sentence, where the method breaks a rule.

    ``kind`` is what it learns on: classes, or numbers under squared errors. ``engines`` are compared with serial bit
    for bit, beside wire (a pool, say). ``counterpart`` is what the method should equal, bit for bit, when it has one
    cluster; it is compared on the models they serve.
    """
    task, population = small_task(kind), small_population(kind=kind)
    ids = torch.arange(CLIENTS)
    serial = Serial(task, population)
    reference = play(method, serial)
    served = method.serve(reference, ids)
    _check_served(method, served, ids)
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
    _check_wrapped(method, task, population)
    _check_sums(method, task, population)
    backwards = play(method, Serial(task, population), order=torch.arange(CLIENTS).flip(0))
    # sums go in the order of the cohort, so floats may differ in their last bits
    assert_close(reference, backwards, f"{method.name}: clients in another order", 100 * tolerance)
    _check_cost(method, task, population, reference)
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


def _check_served(method: Method[Any], served: Served, ids: Tensor) -> None:
    assert served.index.shape == ids.shape, f"{method.name}: serve should give one model per client"
    assert served.index.dtype == torch.int64, f"{method.name}: serve's index should be int64"
    assert int(served.index.min()) >= 0 and int(served.index.max()) < served.k, f"{method.name}: index range"


def _check_declared(method: Method[Any], engine: BaseEngine) -> None:
    """Every procedure that clients were asked to run is one that the method says it runs, so that what leaves a client
    can be told before anything runs."""
    known = exchanged(method)
    unknown = sorted(set(engine.traffic.up) - known.keys())
    assert not unknown, f"{method.name}: it runs {', '.join(unknown)}, which should be in its class variable `runs`"


class _Watched(Wrapper):
    """Keeps what passed between the clients and the wrapper around this one."""

    def __init__(self, inner: BaseEngine) -> None:
        super().__init__(inner)
        self.passed: list[tuple[Call, Chunk]] = []

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            if not (call.server or call.measure):
                self.passed.append((call, chunk))
            yield chunk


def _check_wrapped(method: Method[Any], task: Task, population: Population) -> None:
    """Under a server's limit, private and lying clients the method goes on with finite models; and what the limit
    cuts is the update: all models that come through it lie within it of a model that was sent."""
    ids, limit = torch.arange(CLIENTS), 1e-3
    wrapped: dict[str, BaseEngine] = {
        "clip": _Watched(Clip(Serial(task, population), limit)),
        "attack": Attack(Serial(task, population), AttackConfig("gaussian", scale=2.0), torch.tensor([0, 3])),
    }
    if importlib.util.find_spec("dp_accounting") is not None:
        wrapped["privacy"] = Private(Serial(task, population), PrivacyConfig(clip=0.5, noise_multiplier=0.1))
    for what, engine in wrapped.items():
        state = play(method, engine)
        _check_served(method, method.serve(state, ids), ids)
        for path, t in tensors(state):
            assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{method.name}, {what}: {path}"
    watched = wrapped["clip"]
    assert isinstance(watched, _Watched)
    for call, chunk in watched.passed:
        for field, kind in call.declared.items():
            tree = chunk.fields.get(field)
            if isinstance(kind, Model) and isinstance(tree, dict):
                far = _distance_to_sent(call, chunk, tree, task)
                assert far <= 1.01 * limit, f"{method.name}: {call.label} has {field} cut to {far:g} from what was sent"


class _Masked(Wrapper):
    """What the server of a secure aggregation gets: replies that tell nothing by themselves and have the same sums.

    Each client adds a mask; those of the clients that chose the same cluster cancel in the (weighted) sum.
    """

    def execute(self, call: Call) -> Iterator[Chunk]:
        chunks = list(self.inner.execute(call))
        if call.server or call.measure or not chunks:
            yield from chunks
            return
        fields: dict[str, Any] = join([chunk.fields for chunk in chunks])
        ids = torch.cat([chunk.positions for chunk in chunks])
        weights = [fields[n] for n, k in call.declared.items() if isinstance(k, Weight) and n in fields]
        homes = [fields[n] for n, k in call.declared.items() if isinstance(k, Cluster) and n in fields]
        w = weights[0] if weights else torch.ones(len(ids))
        s = homes[0] if homes else torch.zeros(len(ids), dtype=torch.int64)
        for name, kind in call.declared.items():
            if isinstance(kind, Model | Gradient) and isinstance(fields.get(name), dict):
                masks = {n: _cancelling(keys.fold_in(call.key, name, n), t, w, s) for n, t in fields[name].items()}
                fields[name] = {n: t + masks[n] for n, t in fields[name].items()}
        yield Chunk(ids, fields)


def _cancelling(key: Tensor, like: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Noise ``[m, …]`` whose sum weighted by ``w`` is zero among the rows of equal ``s``."""
    noise = keys.normal(key, *like.shape).to(like.dtype)
    for k in s.unique().tolist():
        mine = (s == k).nonzero().flatten()
        share = w[mine] / w[mine].sum()
        noise[mine] -= torch.einsum("m,m...->...", share, noise[mine])
    return noise


def _check_sums(method: Method[Any], task: Task, population: Population) -> None:
    """A method that says that it needs only sums reaches the same state where single replies tell nothing."""
    if method.only_sums():
        plain, masked = (play(method, engine) for engine in _pair(task, population))
        assert_close(plain, masked, f"{method.name}: with single replies masked", 1e-3)


def _pair(task: Task, population: Population) -> tuple[BaseEngine, BaseEngine]:
    return Serial(task, population), _Masked(Serial(task, population))


def _distance_to_sent(call: Call, chunk: Chunk, tree: Tree, task: Task) -> float:
    """The largest distance of a client's model to the nearest model of all that it was sent, whatever their names."""
    moving = [n for n in tree if n not in (*task.fixed, *task.buffers)]
    worst = 0.0
    for j, p in enumerate(chunk.positions.tolist()):
        mine = vector(row(tree, j), moving)
        sent = [*call.shared.values(), *(take_row(v, p) for v in call.each.values())]
        near = []
        for value in sent:
            if isinstance(value, dict) and all(n in value for n in moving):
                stacked = value[moving[0]].dim() > tree[moving[0]].dim() - 1
                models = [row(value, k) for k in range(rows(value))] if stacked else [value]
                near += [float((vector(m, moving) - mine).norm()) for m in models]
        worst = max(worst, min(near))
    return worst


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
    _check_served(method, served, ids)
    scores = evaluate(engine, method, served, ids, keys.key(12), 2)
    assert bool(scores.of(engine.task.metric.name).isfinite().all()), (
        f"{method.name}: admitted clients should have scores"
    )
