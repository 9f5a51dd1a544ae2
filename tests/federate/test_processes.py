"""Processes are known by id and start, and ended with all that they have started."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from clusterfl.federate import processes
from clusterfl.federate.folder import Federation

SLEEP = "import time; time.sleep(99)"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{SLEEP}'], start_new_session=True); {SLEEP}"


def test_a_free_port_is_none_that_an_outgoing_connection_may_get() -> None:
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {processes.free_port() for _ in range(20)}
    assert len(ports) > 1 and all(processes.LOWEST <= port < above for port in ports)


def test_a_family_is_ended_and_a_stranger_is_not(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ("rome",))
    process = processes.start("rome", [sys.executable, "-c", PARENT], os.environ, tmp_path / "log")
    processes.note(federation, [process])
    assert processes.noted(federation) == [process]
    while not (below := processes._below({process.pid: process})):
        time.sleep(0.05)
    stranger = replace(process, pid=os.getpid())  # the number of another process now
    assert not stranger.alive
    processes.end([process, stranger])
    assert not process.alive and processes.noted(federation) == []
    assert all(processes.began(pid) != when for pid, when in below)
