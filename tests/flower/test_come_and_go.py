"""One federation whose second node is on another machine, as far as one can have that: in a network of its own,
behind a virtual cable. Models go into service and back, nodes come, go and come back, strangers stay out."""

from __future__ import annotations

import json
import os
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.federate import control, processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import init
from clusterfl.federate.processes import Process
from clusterfl.federate.roster import with_node, without_node
from clusterfl.federate.server import read_nodes
from tests.commands.calls import process
from tests.flower.real import TERMS, summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NET = f"10.213.{os.getpid() % 251}"  # of this process: another one may test too
HERE, THERE = f"{NET}.1", f"{NET}.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def inside() -> Iterator[list[str]]:
    """The command that runs another in a network namespace whose one cable leads to HERE; none where it cannot be."""
    name, here, there = f"cfl{os.getpid()}", f"ch{os.getpid()}", f"ct{os.getpid()}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        warnings.warn("no network namespaces here (iproute2, root): both nodes are on loopback", stacklevel=1)
        yield []
        return
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield ["ip", "netns", "exec", name]
    finally:
        ip("netns", "del", name)


def test_nodes_and_models_come_and_go(inside: list[str], tmp_path: Path) -> None:
    for seed, (name, classes) in enumerate({"rome": "rose tulip", "oslo": "iris rose", "bern": "rose tulip"}.items()):
        rng = np.random.default_rng(seed)
        y = np.array(classes.split())[rng.integers(2, size=40)]
        x = rng.normal(size=(40, 5)).astype(np.float32) + 2 * (y == "rose")[:, None]
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.float32), y=y)
    (tmp_path / "f").mkdir()
    host = HERE if inside else "127.0.0.1"
    made = Federation(tmp_path / "f", ("rome", "oslo"), host, processes.free_port(), terms=TERMS)
    federation = init(made, Config.load(None, ["method.name=ifca", "method.k=2", "rounds=1"]))
    started: list[Process] = []

    def node(of: Federation, name: str, inside: list[str] = []) -> Process:  # noqa: B006
        data: dict[str, str | int] = {"data": str(tmp_path / f"{name}.npz")}
        started.append(processes.start_node(of, name, data, inside=inside))
        return started[-1]

    def attend(of: Federation, task: str, **more: Any) -> list[str]:
        return start.attend(of, task, **more)

    try:
        with start.server_up(federation) as server:
            liars = strangers(federation, tmp_path / "other", node)
            node(federation, "rome")
            oslo = node(federation, "oslo", inside)

            # own data, classes by name, TLS to an address that is not loopback
            start.follow(federation, server)
            known = read_nodes(federation.run_folder)
            assert known["classes"] == ["iris", "rose", "tulip"] and summary(federation.run_folder)["clients"] == 2
            assert [known["seen"][n]["rounds"] for n in ("rome", "oslo")] == [1, 1]

            # models go into service, and back
            assert all("the first version" in line for line in attend(federation, "publish", round=-1, margin=0.01))
            assert all("published; score" in line for line in attend(federation, "publish", round=-1, margin=1.0))
            assert serving(federation, "oslo")["version"] == 2
            cluster = known["clusters"]["oslo"]
            said = attend(federation, "rollback", cluster=cluster)
            assert said == [f"cluster {cluster}: back to version 1, of round 1"]
            assert serving(federation, "oslo")["version"] == 1

            # a newcomer is served without a training round
            federation = with_node(federation, "bern")
            control.register(federation, federation.welcome)
            node(federation, "bern")
            (line,) = attend(federation, "admit", node="bern")
            assert "serves version" in line and serving(federation, "bern")["version"] in (1, 2)
            assert read_nodes(federation.run_folder)["round"] == 1

            # one that is revoked is refused; the others go on without it
            federation = without_node(federation, "oslo")
            control.unregister(federation, "oslo")
            config = Config.load(federation.config)
            federation.config.write_text(config.model_copy(update={"rounds": 2}).toml())
            start.run(federation, resume=True)
            seen = read_nodes(federation.run_folder)["seen"]
            assert seen["rome"]["rounds"] == 2 and seen["oslo"]["rounds"] == 1
            assert "not connected" in seen["oslo"]["reason"]
            processes.end([oslo])

            # with a new key it is back, under its name and number
            federation = with_node(federation, "oslo")
            control.register(federation, federation.welcome)
            node(federation, "oslo", inside)
            federation.config.write_text(config.model_copy(update={"rounds": 3}).toml())
            start.run(federation, resume=True)
            seen = read_nodes(federation.run_folder)["seen"]
            assert seen["rome"]["rounds"] == 3 and seen["oslo"]["rounds"] == 2 and seen["oslo"]["epoch"] == 3

            # who does not belong has not got in meanwhile
            are_refused(*liars)
    finally:
        processes.end(started)
        start.stop(federation)


def strangers(federation: Federation, folder: Path, start_node: Any) -> tuple[Process, Process]:
    """A known name with another key, and a node that trusts another authority than the server's."""
    folder.mkdir()
    other = Federation(folder, ("rome", "oslo"), federation.host, federation.port)
    other = init(other, Config.load(None, ["method.name=ifca", "method.k=2"]))
    (other.node("rome") / "ca.crt").write_bytes(federation.authority[0].read_bytes())
    return start_node(other, "rome"), start_node(other, "oslo")


def are_refused(other_key: Process, other_authority: Process) -> None:
    end = time.monotonic() + 240
    while time.monotonic() < end and other_key.alive:
        time.sleep(1)
    assert not other_key.alive, Path(other_key.log).read_text()
    assert "ERTIFICATE_VERIFY_FAILED" in Path(other_authority.log).read_text()


def serving(federation: Federation, name: str) -> dict[str, Any]:
    """What a node's own applications are told to use."""
    path = federation.node(name) / "serving" / "current.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    assert (path.parent / found[0]["file"]).exists()
    return found[0]


def test_insecure_is_refused_off_loopback(tmp_path: Path) -> None:
    said = process(
        "federate", "node", ".", "--name", "a", "--server", f"{HERE}:9", "--data", "x", "--insecure", folder=tmp_path
    )
    assert said.returncode == 2 and "--insecure should be used on loopback only" in said.stderr
    with pytest.raises(ConfigError, match="on loopback only"):
        init(Federation(tmp_path / "f", ("a",), HERE, insecure=True), Config.load(None))
    assert not (tmp_path / "f").exists()
