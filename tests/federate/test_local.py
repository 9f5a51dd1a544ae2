"""One short federation of real processes, with TLS and keys: it learns what the simulator learns and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.federate import processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.status import lines, status_of
from tests.federate.run_folder import every_command_works
from tests.flower.real import TERMS, agrees_with_the_simulator, config


@pytest.mark.timeout(900)
def test_two_nodes_and_two_rounds(tmp_path: Path) -> None:
    asked = config(2, "rounds=2", "eval_every=2", "method.name=ifca", "method.k=2")
    told = []
    start.local(asked, tmp_path / "r", 2, terms=TERMS, told=told.append)
    assert [row["round"] for row in told] == [0, 1, 2]
    agrees_with_the_simulator(tmp_path / "r", asked, tmp_path / "sim")
    federation = Federation.read(tmp_path / "r" / "federation")
    assert processes.noted(federation) == []
    found = status_of(federation)
    assert [(n["name"], n["rounds"], n["failed"]) for n in found["nodes"]] == [("node-0", 2, 0), ("node-1", 2, 0)]
    assert found["server"] == "down" and found["run"] == "finished" and len(lines(found)) == 4
    every_command_works(tmp_path / "r", tmp_path)
