"""Python in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


def wait_for(mark: Path, process: subprocess.Popen[str]) -> None:
    """Until a file is there, or the process has ended; pytest's own limit is the only one.

    A checkpoint is also there once a later one is: runs keep the last two, and a busy machine looks too late.
    """
    while not _there(mark) and process.poll() is None:
        time.sleep(0.002)


def _there(mark: Path) -> bool:
    if mark.suffix != ".ckpt":
        return mark.exists()
    return any(path.name >= mark.name for path in mark.parent.glob("round-*.ckpt"))
