"""A node's program is light: little more than PyTorch itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_importing_what_a_node_needs_takes_little_more_than_pytorch() -> None:
    """CPU seconds, the least of some turns: others may use the machine meanwhile."""
    seconds: dict[str, list[float]] = {"torch": [], "clusterfl.federate.node": []}
    for _ in range(4):
        for module, found in seconds.items():
            found.append(cpu_of(f"import {module}"))
    bare, node = (min(found) for found in seconds.values())
    assert node < 1.5 * bare, seconds


def cpu_of(code: str) -> float:
    """User and system seconds of a Python process."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
