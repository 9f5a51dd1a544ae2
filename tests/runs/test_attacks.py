"""Runs under attack: what they say of the honest, and which rules withstand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clusterfl
from clusterfl.config import Config

SMALL = ["data.clients=12", "data.clusters=3", "data.samples=20", "data.test_samples=60", "engine.name=serial"]


@pytest.mark.parametrize("kind", ["label-flip", "sign-flip", "gaussian", "scale"])
@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_a_run_under_attack_says_how_the_honest_fared(name: str, kind: str, tmp_path: Path) -> None:
    config = Config.load(None, [*SMALL, "rounds=2", f"method.name={name}", f"attack.kind={kind}"])
    outcome = clusterfl.run(config, out=tmp_path)
    population, summary = outcome.population, json.loads((tmp_path / "summary.json").read_text())
    accuracy, liars = outcome.records[-1].accuracy, [population.names.index(n) for n in summary["attackers"]]
    honest = [i for i in range(12) if i not in liars]
    assert len(liars) == 2 and population.truth is not None
    assert summary["accuracy_honest"] == pytest.approx(float(accuracy[honest].mean()))
    per_cluster = [float(accuracy[[i for i in honest if int(population.truth[i]) == k]].mean()) for k in range(3)]
    assert summary["accuracy_worst_cluster"] == pytest.approx(min(per_cluster))
    assert Config.load(tmp_path / "config.toml").attackers(population).tolist() == liars


def test_a_robust_rule_and_a_limit_withstand_what_a_mean_does_not() -> None:
    def honest(*more: str) -> float:
        given = ["rounds=8", "data.clients=20", "data.clusters=1", "data.shift=none", "data.samples=40"]
        attack = ["attack.kind=sign-flip", "attack.scale=10.0", "engine.name=stacked", "method.name=fedavg"]
        config = Config.load(None, [*given, *attack, *more])
        outcome = clusterfl.run(config)
        liars = config.attackers(outcome.population).tolist()
        return float(outcome.records[-1].accuracy[[i for i in range(20) if i not in liars]].mean())

    assert honest() < 0.5
    assert honest("method.aggregate=trimmed") > 0.8 and honest("method.aggregate=krum") > 0.8
    assert honest("engine.clip_updates=0.3") > 0.7
