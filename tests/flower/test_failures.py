"""What dies comes back; who does not belong stays out."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from clusterfl.config import Config
from clusterfl.engines.flower.engine import Terms
from clusterfl.errors import ClusterflError
from clusterfl.federate import processes, start
from clusterfl.federate.certificates import make_node_key
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import init
from clusterfl.federate.server import read_nodes
from clusterfl.runs.checkpoint import newest_snapshot
from tests.flower.real import TERMS, agrees_with_the_simulator, config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_killed_node_is_left_out_and_comes_back_under_its_name(tmp_path: Path) -> None:
    out = tmp_path / "r"
    rounds = 8
    asked = config(3, f"rounds={rounds}", f"eval_every={rounds}", "method.k=2")

    def told(row: dict[str, Any]) -> None:
        federation = Federation.read(out / "federation")
        if row["round"] == 1:
            victim = next(p for p in processes.noted(federation) if p.role == "node-2")
            os.kill(victim.pid, signal.SIGKILL)
        if row["round"] == 2:
            start.start_demo_node(federation, 2)

    start.local(asked, out, 3, terms=Terms(timeout=90.0, wait=400.0, least=1), told=told)
    seen = read_nodes(out)["seen"]
    assert seen["node-2"]["failed"] >= 1 and seen["node-2"]["rounds"] < rounds
    assert seen["node-2"]["epoch"] == rounds, "it should take part in the last round again"
    assert seen["node-0"]["rounds"] == seen["node-1"]["rounds"] == rounds


def test_a_killed_server_loses_at_most_the_round_under_way(tmp_path: Path) -> None:
    out = tmp_path / "r"
    asked = config(2, "method.name=fedper", "model.name=mlp", "rounds=4", "eval_every=4")
    last = [0]

    def told(row: dict[str, Any]) -> None:
        last[0] = row["round"]
        if row["round"] == 2:
            federation = Federation.read(out / "federation")
            server = next(p for p in processes.noted(federation) if p.role == "server")
            os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(ClusterflError, match="resume"):
        start.local(asked, out, 2, terms=TERMS, told=told)
    assert newest_snapshot(out).round >= last[0] == 2
    start.local(asked, out, 2, resume=True, terms=TERMS)
    agrees_with_the_simulator(out, asked, tmp_path / "sim")


def test_strangers_are_refused(tmp_path: Path) -> None:
    """A node that nobody registered, a known name with another key, and a server that another authority vouches for."""
    folder = tmp_path / "f"
    other = tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
    made = Federation(folder, ("rome", "oslo"), port=processes.free_port(), demo=True, terms=TERMS)
    federation = init(made, Config.load(None, ["method.k=2", "data.clusters=2"]))
    stranger = init(
        Federation(other, ("rome", "oslo"), demo=True), Config.load(None, ["method.k=2", "data.clusters=2"])
    )
    (federation.node("rome") / "key").unlink()
    make_node_key(federation.node("rome") / "key", tmp_path / "new.pub")  # another key under a known name
    (federation.node("oslo") / "ca.crt").write_bytes(stranger.authority[0].read_bytes())
    try:
        with start.server_up(federation):
            rome, oslo = (start.start_demo_node(federation, i) for i in range(2))
            end = time.monotonic() + 240
            while time.monotonic() < end and (rome.alive or "ERTIFICATE" not in Path(oslo.log).read_text()):
                time.sleep(1)
            assert not rome.alive, Path(rome.log).read_text()
            assert "ERTIFICATE_VERIFY_FAILED" in Path(oslo.log).read_text()
    finally:
        start.stop(federation)
