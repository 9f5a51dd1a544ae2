"""Python in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def python(*words: str | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, words)], env=environment, stderr=subprocess.PIPE, encoding="utf-8"
    )


def ended(process: subprocess.Popen[str]) -> int:
    _, said = process.communicate(timeout=240)
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode
