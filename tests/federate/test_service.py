"""Models in service: versions, the gate, the way back, and a newcomer who never trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterfl.engines.flower.messages import Receipt
from clusterfl.errors import ConfigError
from clusterfl.federate.folder import Federation
from clusterfl.federate.kept import Disk
from clusterfl.federate.server import attend
from clusterfl.federate.service import Versions, gate
from tests.federate.fleet import Fleet, demo, run

TASK: dict[str, Any] = {"round": -1, "margin": 0.01, "cluster": -1, "node": ""}


def ask(federation: Federation, fleet: Fleet, task: str, **more: Any) -> list[str]:
    return attend(federation, fleet, "9", {**TASK, "task": task, **more})


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Federation, Fleet]:
    federation, fleet = demo(
        tmp_path / "f", 2, "method.name=ifca", "method.k=2", "rounds=3", "checkpoint.keep=4", "data.samples=60"
    )
    run(federation, fleet)
    return federation, fleet


def test_a_version_is_published_refused_and_rolled_back(trained: tuple[Federation, Fleet]) -> None:
    federation, fleet = trained
    assert all("the first version" in line for line in ask(federation, fleet, "publish", round=2))
    disk = Disk(federation.folder / "node-0")
    first = disk.serving()
    assert first is not None and first[0] == 1
    said = ask(federation, fleet, "publish", round=0)  # untrained models
    assert any("refused: score" in line for line in said)
    cluster = next(int(line.split()[1].rstrip(":")) for line in said if "refused" in line)
    before = Versions.read(federation)
    assert before.current[cluster] == 1
    said = ask(federation, fleet, "publish", round=3, margin=1.0)
    assert all("published; score" in line for line in said)
    assert Versions.read(federation).current[cluster] == 2
    assert ask(federation, fleet, "rollback", cluster=cluster) == [f"cluster {cluster}: back to version 1, of round 2"]
    assert Versions.read(federation).current[cluster] == 1
    with pytest.raises(ConfigError, match="a version before the current one"):
        ask(federation, fleet, "rollback", cluster=cluster)
    with pytest.raises(ConfigError, match=r"round=7 should be one whose checkpoint is kept: \[0, 1, 2, 3\]"):
        ask(federation, fleet, "publish", round=7)


def test_a_newcomer_is_served_without_training(trained: tuple[Federation, Fleet]) -> None:
    federation, fleet = trained
    ask(federation, fleet, "publish")
    grown = replace(federation, nodes=(*federation.nodes, "late"))
    home = federation.folder / "late"
    fleet.settings["late"] = {**fleet.settings["node-1"], "home": home}  # it holds what node 1 does
    (line,) = ask(grown, fleet, "admit", node="late")
    mine, theirs = Disk(home).serving(), Disk(federation.folder / "node-1").serving()
    assert "serves version 1" in line and mine is not None and theirs is not None
    assert all(torch.equal(t, theirs[1][n]) for n, t in mine[1].items())
    ask(grown, fleet, "publish", margin=1.0)
    assert (Disk(home).serving() or (0,))[0] == 2


def test_personal_models_are_made_on_the_node(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 2, "method.name=fedper", "model.name=mlp")
    run(federation, fleet)
    ask(federation, fleet, "publish")
    one, two = (Disk(federation.folder / f"node-{i}").serving() for i in range(2))
    assert one is not None and two is not None
    assert any(not torch.equal(t, two[1][n]) for n, t in one[1].items())  # each has its own head


def test_the_gate() -> None:
    assert gate([], 0.0) == (False, "refused: no node could try it")
    assert gate([Receipt(0, 10, 5, -1, -1)], 0.0)[0]
    assert gate([Receipt(0, 10, 5, 1, 6)], 0.0)[0] is False
    assert gate([Receipt(0, 10, 5, 1, 6)], 0.1)[0]
    assert gate([Receipt(0, 10, 5, 1, 6), Receipt(0, 10, 9, 1, 7)], 0.0)[0]  # better on all nodes together
