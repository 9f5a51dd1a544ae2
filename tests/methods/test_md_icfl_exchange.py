"""MD-ICFL: what crosses under weak and strong privacy, and how often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.data.population import Population
from clusterfl.engines import Serial, Wire, codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.errors import NoReplies
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.md_icfl import MDICFL
from clusterfl.parts.aggregate import mean_by
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLASSES, CLIENTS, play, small_population, small_task
from clusterfl.tree import take

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
QUICK = MDICFL(k=2, local=LOCAL, samples=2, iterations=5, warmup=0)
KEY = keys.key(5)


class Tapped(Wire):
    """Keeps every message that crosses."""

    def __init__(self, task: Task, population: Population) -> None:
        super().__init__(task, population)
        self.up: list[tuple[str, dict[str, Any], bytes]] = []

    def _far_side(self, message: bytes) -> bytes:
        reply = super()._far_side(message)
        request = codec.unpack(message)
        if not request.server:
            self.up.append((request.name, codec.unpack(reply).fields, reply))
        return reply


def skewed_population() -> Population:
    """Each client has its own label ratios, none of them round numbers."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(6):
        y = rng.permutation(np.repeat(np.arange(CLASSES), [5 + i, 9 - i, 3 + 2 * i]))
        parts.append((rng.normal(size=(len(y), 6)) + 2.0 * y[:, None], y))
    return Population.from_arrays(parts, parts, classes=CLASSES)


def test_strong_privacy_sends_models_and_cluster_ids_alone() -> None:
    population, task = skewed_population(), small_task()
    engine = Tapped(task, population)
    strong = replace(QUICK, privacy="strong")
    state = play(strong, engine, rounds=3)
    assert state.p is None
    assert {name for name, _, _ in engine.up} == {"train", "choose"}
    fields = {n for name, reply, _ in engine.up if name == "choose" for n in reply}
    assert fields == {"s"}
    ratios = [torch.bincount(population.train.of(i)[1], minlength=CLASSES).float() for i in range(6)]
    for name, reply, raw in engine.up:
        if name == "choose":
            assert reply["s"].shape == () and reply["s"].dtype == torch.int64
        for counts in ratios:
            for secret in (counts, counts.long(), counts / counts.sum()):
                assert secret.numpy().tobytes() not in raw

    weak = Tapped(task, population)
    assert_equal(state.centers, play(QUICK, weak, rounds=3).centers, "weak and strong")
    assert any((c / c.sum()).numpy().tobytes() in raw for c in ratios for _, _, raw in weak.up)


def test_label_ratios_are_sent_once() -> None:
    population = skewed_population()
    engine = Serial(small_task(), population)
    state = play(QUICK, engine, rounds=1, some=0.5)
    seen = (state.p.sum(dim=1) > 0).sum()
    assert seen == 3 and engine.traffic.up["MDICFL.ratios"] == 3 * CLASSES * 4
    state = play(QUICK, engine, rounds=3, state=state)
    assert engine.traffic.up["MDICFL.ratios"] == 6 * CLASSES * 4
    for i in range(6):
        counts = torch.bincount(population.train.of(i)[1], minlength=CLASSES).float()
        torch.testing.assert_close(state.p[i], counts / counts.sum())


class Deaf(Wrapper):
    """Clients that never answer one procedure."""

    def __init__(self, inner: BaseEngine, name: str, ids: set[int]) -> None:
        super().__init__(inner)
        self.name, self.deaf = name, ids

    def execute(self, call: Call) -> Iterator[Chunk]:
        stay = torch.tensor(
            [p for p, i in enumerate(call.ids.tolist()) if call.name != self.name or i not in self.deaf]
        )
        if len(stay):
            for chunk in self.inner.execute(call.only(stay)):
                yield Chunk(stay[chunk.positions], chunk.fields)


def test_a_client_whose_ratios_are_unknown_waits() -> None:
    population, task = skewed_population(), small_task()
    engine = Deaf(Serial(task, population), "ratios", {0, 1})
    start = play(QUICK, engine, rounds=0)
    state = QUICK.round(start, engine.cohort(torch.arange(6), KEY))
    assert state.p is not None and (state.p.sum(dim=1) > 0).tolist() == [False, False, True, True, True, True]
    assert torch.equal(state.assign[:2], start.assign[:2])
    cohort = engine.cohort(torch.arange(2, 6), KEY)
    theta = cohort.run(QUICK.train, theta=take(start.centers, start.assign[2:]))["theta"]
    for j in state.assign[2:].unique().tolist():  # the two have no part in the means
        for name, t in theta.items():
            torch.testing.assert_close(state.centers[name][j], t[state.assign[2:] == j].mean(dim=0))
    engine.deaf = set()
    state = QUICK.round(state, engine.cohort(torch.arange(6), KEY))
    assert state.p is not None and bool((state.p.sum(dim=1) > 0).all())
    engine.deaf = set(range(6))
    with pytest.raises(NoReplies, match=r"MDICFL\.ratios"):
        QUICK.round(start, engine.cohort(torch.arange(6), KEY))


class Devices(Serial):
    """Devices that wait with their answers until the server has searched, ten seconds at most."""

    far = True

    def __init__(self, task: Task, population: Population) -> None:
        super().__init__(task, population)
        self.searched, self.in_time = threading.Event(), []

    def execute(self, call: Call) -> Iterator[Chunk]:
        if call.name == "train":
            self.in_time.append(self.searched.wait(10.0))
        yield from super().execute(call)
        if call.name == "sample":
            self.searched.set()


def test_the_server_searches_while_devices_train() -> None:
    """Section 3.4. What comes out is what comes out one after the other."""
    population, task = small_population(), small_task()
    plain, devices = Serial(task, population), Devices(task, population)
    start = play(QUICK, plain, rounds=0)
    ids = torch.arange(CLIENTS)
    ends = [QUICK.round(start, engine.cohort(ids, KEY)) for engine in (plain, devices)]
    assert devices.in_time == [True]
    assert_equal(ends[0].centers, ends[1].centers, "one after the other and at once")
    assert torch.equal(ends[0].assign, ends[1].assign)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
@pytest.mark.parametrize("k", [2, 4])
def test_downloads_a_kth_of_ifca(privacy: Any, k: int) -> None:
    population, task = small_population(), small_task()
    down = {}
    for method in (replace(QUICK, k=k, privacy=privacy), IFCA(k=k, local=LOCAL)):
        engine = Serial(task, population)
        state = play(method, engine, rounds=0)
        before = engine.traffic.total_down
        play(method, engine, rounds=1, state=state)
        down[method.name] = engine.traffic.total_down - before
    floats = CLIENTS * k * CLASSES * 4 if privacy == "strong" else 0
    assert down["md-icfl"] - floats == down["ifca"] / k


def explained(d: Tensor, answers: Tensor, guesses: int = 20_000) -> tuple[Tensor, Tensor]:
    """Ratios drawn uniformly ``[guesses, C]``, and those of them that explain every answer to distances ``[T, K, C]``:
    the most that a server can do with class-wise distances and answers alone (eq. 8)."""
    raw = -keys.uniform(keys.fold_in(keys.key(0), "p"), guesses, d.shape[2]).log()
    drawn = raw / raw.sum(dim=1, keepdim=True)
    fits = torch.ones(guesses, dtype=torch.bool)
    for of_round, answer in zip(d, answers, strict=True):
        fits &= (drawn @ of_round.T).argmin(dim=1) == answer
    return drawn, drawn[fits]


def test_answers_to_distances_that_change_freely_tell_the_label_ratios() -> None:
    """Eq. 8 holds of one answer. Forty, to distances that have nothing to do with each other, leave one ratio in 250,
    all around the true ones: their centre is a seventh as far from these as a blind guess."""
    truth = torch.tensor([0.55, 0.25, 0.15, 0.05])
    d = keys.uniform(keys.fold_in(keys.key(0), "d"), 40, 3, 4)
    drawn, left = explained(d, (d @ truth).argmin(dim=1), guesses=200_000)
    assert 0.002 < len(left) / len(drawn) < 0.006
    errors = [float((x.mean(dim=0) - truth).abs().sum()) for x in (left, drawn)]
    assert errors[0] < 0.1 < 0.55 < errors[1]
    assert 0.2 < float((left - truth).abs().sum(dim=1).max()) < 0.35, "and none of them is far away"


@pytest.mark.parametrize("start", ["kmeans-local", "independent"])
def test_answers_to_the_distances_of_a_run_tell_next_to_nothing(start: Any) -> None:
    """There a client's own cluster is nearest in nearly every class: forty answers rule few ratios out, and the centre
    of what is left is hardly nearer to the truth than a blind guess."""
    population = skewed_population()
    engine, strong = Serial(small_task(), population), replace(QUICK, privacy="strong", start=start)
    state, d, answers = play(strong, engine, rounds=0), [], []
    for t in range(40):
        got = engine.cohort(torch.arange(6), keys.fold_in(KEY, t)).run(
            strong.train, theta=take(state.centers, state.assign)
        )
        pseudo = strong.pseudo(state, got.cohort)
        found: Any = got.cohort.map(strong.distance, {"x": pseudo.x, "h": pseudo.h}, theta=got["theta"])["d"]
        got, s = got.join(got.cohort.run(strong.choose, d=found), "s")
        state = replace(state, centers=mean_by(got["theta"], s, old=state.centers), assign=s)
        d.append(found)
        answers.append(s)
    away = []
    for i in range(6):
        counts = torch.bincount(population.train.of(i)[1], minlength=CLASSES).float()
        drawn, left = explained(torch.stack(d)[:, i], torch.stack(answers)[:, i])
        away.append([float((x.mean(dim=0) - counts / counts.sum()).abs().sum()) for x in (left, drawn)])
    with_answers, blind = torch.tensor(away).mean(dim=0).tolist()
    assert with_answers > 0.85 * blind


def test_the_uploaded_model_tells_the_label_ratios_all_the_same() -> None:
    """That is of distances and answers alone. The server also has the models: a step moves the biases of the last
    layer by the client's label ratios less what the sent model expected, which a cluster has in common."""
    population, task = skewed_population(), small_task()
    engine = Serial(task, population)
    strong = replace(QUICK, privacy="strong", local=SGD(lr=0.1, batch=1000, steps=1))
    state = play(strong, engine, rounds=0)
    sent = take(state.centers, state.assign)
    theta = engine.cohort(torch.arange(6), KEY).run(strong.train, theta=sent)["theta"]
    bias = task.head[-1]
    counts = [torch.bincount(population.train.of(i)[1], minlength=CLASSES).float() for i in range(6)]
    seen, held = (theta[bias] - sent[bias]) / 0.1, torch.stack([c / c.sum() for c in counts])
    for j in state.assign.unique().tolist():  # among themselves
        mine = state.assign == j
        seen[mine], held[mine] = seen[mine] - seen[mine].mean(dim=0), held[mine] - held[mine].mean(dim=0)
    assert float(held.norm()) > 0.1
    assert float((seen - held).norm() / held.norm()) < 0.5, "the ratios, to less than half of what tells them apart"
