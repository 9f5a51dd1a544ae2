"""Two machines, as far as one can have them: the second node lives in a network of its own, behind a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusterfl.config import Config
from clusterfl.federate import processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import init
from clusterfl.federate.server import read_nodes
from tests.flower.real import TERMS, summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[str]:
    """A network namespace whose one cable leads here, to 10.213.7.1."""
    name, here, there = f"cfl{os.getpid()}", f"ch{os.getpid()}", f"ct{os.getpid()}"
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need iproute2 and root")
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as e:
        pytest.skip(f"no network namespaces here: {e.stderr.decode().strip()}")
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("addr", "add", "10.213.7.1/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", "10.213.7.2/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)


def test_a_node_on_another_machine_with_its_own_data(network: str, tmp_path: Path) -> None:
    """Own data, classes by name, TLS to an address that is not loopback; the first version goes into service."""
    rng = np.random.default_rng(0)
    for name, classes in (("rome", ["rose", "tulip"]), ("oslo", ["iris", "rose"])):
        y = np.array(classes)[rng.integers(2, size=40)]
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(40, 5)).astype(np.float32), y=y)
    (tmp_path / "f").mkdir()
    made = Federation(tmp_path / "f", ("rome", "oslo"), "10.213.7.1", processes.free_port(), terms=TERMS)
    federation = init(made, Config.load(None, ["method.k=2", "rounds=1"]))
    started = []
    try:
        with start.server_up(federation) as server:
            for name, inside in (("rome", []), ("oslo", ["ip", "netns", "exec", network])):
                data: dict[str, str | int] = {"data": str(tmp_path / f"{name}.npz")}
                started.append(processes.start_node(federation, name, data, inside=inside))
            start.follow(federation, server)
            said = start.attend(federation, "publish", round=-1, margin=0.01)
    finally:
        processes.end(started)
        start.stop(federation)
    known = read_nodes(federation.run_folder)
    assert known["classes"] == ["iris", "rose", "tulip"]
    assert [known["seen"][n]["rounds"] for n in ("rome", "oslo")] == [1, 1]
    assert summary(federation.run_folder)["clients"] == 2
    assert said and all("published, the first version" in line for line in said)
    assert (federation.node("oslo") / "serving" / "current.json").exists()
