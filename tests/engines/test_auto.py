"""engine = "auto": what is measured decides, it is cached, and the resolved config says it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Plan, auto
from clusterfl.engines.auto import candidates, choose, describe_plan
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.make import Load, resolve
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing.small import small_population, small_task

RULE = SGD(lr=0.1, batch=10)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path))
    monkeypatch.setattr(auto, "usable_cores", lambda: 2)
    return tmp_path / "engines"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Plan]]]:
    """What was measured; larger stacks are faster, and a step takes ``STEP`` seconds at best."""
    asked: list[list[Plan]] = []

    def measure(task: Task, population: Population, plans: Sequence[Plan], *_: Any) -> list[float]:
        asked.append(list(plans))
        return [STEP * (1.0 + 1.0 / plan.chunk if plan.stacked else 4.0) for plan in plans]

    monkeypatch.setattr(auto, "measure", measure)
    yield asked


STEP = 1e-2


def choice(**more: Any) -> auto.Choice:
    return choose(small_task(), small_population(), RULE, **{"per_round": 12, "rounds": 20, **more})


def test_the_fastest_plan_is_taken_and_measured_once(timed: list[list[Plan]], cache: Path) -> None:
    found = choice()
    assert found.plan == Plan(stacked=True, chunk=6) and len(timed) == 1
    assert choice() == found and len(timed) == 1, "the second time it is known"
    assert choice(fresh=True) == found and len(timed) == 2
    (file,) = cache.glob("*.json")
    file.write_text("{")
    assert choice() == found and len(timed) == 3, "a damaged cache is measured again"
    assert {tuple(sorted(entry)) for entry in json.loads(file.read_text())} == {("plan", "step")}


def test_worker_processes_where_they_pay(timed: list[list[Plan]]) -> None:
    assert choice(rounds=2).workers == 1, "starting them takes longer than two rounds"
    assert choice(rounds=10**6).workers == 2
    assert choice(rounds=10**6, alone=True).workers == 1, "they could not follow"
    assert choice(rounds=10**6, per_round=1).workers == 1, "nobody to share the work with"


def test_plans_worth_timing() -> None:
    dense = list(candidates(small_task(), 12, 2))
    assert dense == [Plan(), Plan(stacked=True, chunk=4), Plan(stacked=True, chunk=6)]
    wide = list(candidates(small_task(), 12, 2, wide=True))
    assert [p.spread for p in wide if p.stacked] == [1.25, 4.0, 1.25, 4.0]
    conv = Task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), 3)
    assert list(candidates(conv, 100, 2)) == [Plan(), Plan(channels_last=True), Plan(stacked=True, chunk=8)]
    assert list(candidates(small_task(), 1, 2)) == [Plan()], "one client is not stacked"


def test_real_clocks_give_a_plan_for_clients_of_any_size() -> None:
    """Not even those without data stand in the way."""
    parts = [(torch.randn(n, 6), torch.arange(n) % 3) for n in (0, 40, 7, 0, 23)]
    shards = Shards.from_parts(parts)
    population = Population(shards, shards, 5, 3)
    found = choose(small_task(), population, SGD(lr=0.1, batch=5, steps=3), per_round=5, rounds=1)
    assert found.step > 0 and describe_plan(found.plan)


def test_the_resolved_config_says_what_was_chosen(timed: list[list[Plan]]) -> None:
    task, population = small_task(), small_population()
    few = resolve(EngineConfig(chunk=9), task, population, load=Load(RULE, rounds=2))
    assert few == EngineConfig("stacked", chunk=6)
    many = resolve(EngineConfig(guard=False), task, population, load=Load(RULE, rounds=10**6))
    assert many == EngineConfig("pool", chunk=6, workers=2, stacked=True, guard=False)
    assert resolve(many, task, population) == many and len(timed) == 1, "what is decided stays"
    assert resolve(EngineConfig("pool"), task, population).stacked is True
    assert resolve(EngineConfig("serial"), task, population) == EngineConfig("serial")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(), "one client at a time"),
        (Plan(channels_last=True), "one client at a time, channels last"),
        (Plan(stacked=True, chunk=8), "stacked, 8 clients at a time"),
        (Plan(stacked=True, chunk=8, spread=4.0), "stacked, 8 clients at a time (sizes up to 4 times apart)"),
    ],
)
def test_plans_in_words(plan: Plan, words: str) -> None:
    assert describe_plan(plan) == words
