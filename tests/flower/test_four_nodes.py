"""One federation of four real nodes: methods to the simulator's figures, then what dies comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfl.config import Config
from clusterfl.errors import ClusterflError
from clusterfl.federate import processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import for_nodes, init
from clusterfl.federate.server import read_nodes
from clusterfl.runs.checkpoint import newest_snapshot
from tests.flower.real import TERMS, agrees_with_the_simulator, config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

METHODS = {
    "ifca": ["method.k=2", "rounds=3", "eval_every=3"],
    "md-icfl": [
        "method.k=2",
        "method.privacy=strong",
        "method.warmup=0",
        "rounds=2",
        "eval_every=2",
    ],  # a second exchange in each round
    "fedper": ["model.name=mlp", "rounds=2", "eval_every=2"],  # kept state
    "fesem": ["method.k=2", "rounds=2", "eval_every=2"],
    "kin": ["data.samples=60", "rounds=2", "eval_every=2"],  # statistics before training, kept state
}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    names = tuple(f"node-{i}" for i in range(4))
    folder = tmp_path_factory.mktemp("four")
    made = init(Federation(folder, names, port=processes.free_port(), demo=True, terms=TERMS), config(4))
    with start.everything_up(made):
        yield made


def run(federation: Federation, asked: Config, **more: Any) -> None:
    """Another run on nodes that are there already."""
    if not more.get("resume"):
        federation.config.write_text(for_nodes(asked, federation).toml())
        more["force"] = True
    start.run(federation, **more)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_what_the_simulator_learns(name: str, four: Federation, tmp_path: Path) -> None:
    asked = config(4, f"method.name={name}", *METHODS[name])
    run(four, asked)
    agrees_with_the_simulator(four.run_folder, asked, tmp_path / "sim")


def test_a_killed_server_loses_at_most_the_round_under_way(four: Federation, tmp_path: Path) -> None:
    """The nodes stay, and find the server that is started in its place."""
    asked = config(4, "method.name=fedper", "model.name=mlp", "rounds=3", "eval_every=3")

    def told(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            server = next(p for p in processes.noted(four) if p.role == "server")
            os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(ClusterflError, match="resume"):
        run(four, asked, told=told)
    assert newest_snapshot(four.run_folder).round >= 1
    run(four, asked, resume=True)
    agrees_with_the_simulator(four.run_folder, asked, tmp_path / "sim")


def test_a_killed_node_is_left_out_and_comes_back_under_its_name(four: Federation) -> None:
    """Flower takes it for connected for a minute more, and refuses it until then."""
    replace(four, terms=replace(TERMS, timeout=120.0)).write()
    rounds, last = 10, 0
    asked = config(4, f"rounds={rounds}", f"eval_every={rounds}", "method.name=ifca", "method.k=2")

    def told(row: dict[str, Any]) -> None:
        nonlocal last
        last = row["round"]
        if last == 1:
            victim = next(p for p in processes.noted(four) if p.role == "node-3")
            os.kill(victim.pid, signal.SIGKILL)
        if last == 2:
            start.start_demo_node(four, 3)
            time.sleep(1)

    run(four, asked, told=told)
    seen = read_nodes(four.run_folder)["seen"]
    assert seen["node-3"]["failed"] >= 1 and seen["node-3"]["rounds"] < rounds == last
    assert seen["node-3"]["epoch"] == rounds, "it should take part in the last round again"
    assert all(seen[f"node-{i}"]["rounds"] == rounds for i in range(3))
