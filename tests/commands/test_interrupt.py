"""Ctrl-C, which reaches a program and all its workers: a word, how to go on, and nothing else."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import summary_of
from tests.processes import wait_for


def interrupted(mark: Path, *arguments: str) -> tuple[int, str]:
    """A command in a group of its own, interrupted as soon as a file is there: how it ended, what it said."""
    with subprocess.Popen(
        [sys.executable, "-m", "clusterfl", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    ) as process:
        try:
            wait_for(mark, process)
            assert process.poll() is None, "it ended before it could be interrupted"
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    return process.returncode, said


def test_an_interrupted_pool_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "r"
    settings = ["rounds=60", "data.clients=8", "data.samples=20", "data.test_samples=50"]
    settings += ["engine.name=pool", "engine.workers=2"]
    words = [word for setting in settings for word in ("--set", setting)]
    said = ["interrupted", f"go on with: clusterfl resume {out}"]
    # while workers start, before there is a round
    code, heard = interrupted(out / "data.json", "run", *words, "--out", str(out), "--quiet")
    assert code == 130 and heard.splitlines() == said, heard
    # between two rounds
    code, heard = interrupted(out / "checkpoints" / "round-000003.ckpt", "resume", str(out), "--quiet")
    assert code == 130 and heard.splitlines() == said, heard
    done = [sys.executable, "-m", "clusterfl", "resume", str(out), "--quiet"]
    subprocess.run(done, check=True, stdout=subprocess.DEVNULL)
    assert summary_of(out)["rounds"] == 60


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_interrupted_work_of_many_runs_says_how_to_go_on(command: str, tmp_path: Path) -> None:
    out = tmp_path / "t"
    settings = ["rounds=400", "data.clients=8", "data.samples=20", "data.test_samples=50", "engine.name=serial"]
    words = [command, "--out", str(out), "--seeds", "0-1"]
    words += [word for setting in settings for word in ("--set", setting)]
    words += ["--methods", "ifca"] if command == "compare" else ["--grid", "local.lr=0.01,0.1", "--jobs", "2"]
    first = out / "runs" / ("local-seed0" if command == "compare" else "local.lr=0.01-seed0")
    code, heard = interrupted(first / "checkpoints" / "round-000001.ckpt", *words, "--quiet")
    again = shlex.join(["clusterfl", *words, "--quiet"])
    assert code == 130 and heard.splitlines() == ["interrupted; what is finished is kept", f"go on with: {again}"], (
        heard
    )
