"""The command line as a whole: help, version, one sentence for bad input, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .calls import SMALL, call, process

BAD: list[list[str]] = [
    ["--set", "rouns=1"],
    ["--set", "data.clietns=4"],
    ["--set", "method.name=ifca", "--set", "method.k=0"],
    ["--set", "method.name=ifca", "--set", "method.k=9"],
    ["--set", "method.k=2"],
    ["--set", "data.alpha=0"],
    ["--set", "rounds=many"],
    ["--set", "data.source=nothing"],
    ["--set", "data.source=mnist", "--data-root", "nowhere"],
    ["--set", "method.name=ifcaa"],
    ["--set", "model.name=lenet", "--set", "model.padding=9"],
    ["--set", "rounds"],
    ["--seed", "-1"],
    ["--set", "seed=18446744073709551616"],
    ["--set", "data.clients=1000000000"],
    ["--set", "data.clients=100000", "--set", "data.samples=100000"],
    ["--set", "local.lr=1e300"],
    ["missing.toml"],
]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("bad", BAD, ids=" ".join)
def test_bad_input_is_one_sentence_exit_2_and_writes_nothing(command: str, bad: list[str], tmp_path: Path) -> None:
    if command == "compare" and "--seed" in bad:
        bad = ["--seeds", "2-1"]
    for more in ([], ["--json"]):
        done = call(command, *SMALL, *bad, *more, "--out", "out", folder=tmp_path)
        assert done.exit_code == 2 and done.stdout == ""
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ") and "should" in lines[0]
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "there/x")

    monkeypatch.setattr("clusterfl.runs.run.carry_out", denied)
    done = call("run", *SMALL, "--quiet", folder=tmp_path)
    assert done.exit_code == 2 and done.stderr == "error: there/x could not be used: Permission denied\n"


def test_bad_input_as_a_process(tmp_path: Path) -> None:
    done = process("run", "--set", "method.k=3", folder=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.splitlines() == [
        "run: loading PyTorch …",
        "error: method.k=3 should be left out: kin finds the number of groups itself; method.groups fixes it, or "
        "method.name=ifca chooses a method that is told it",
    ]


def test_another_librarys_warning_of_a_full_dev_shm_is_not_passed_on() -> None:
    """A sentence of joblib's stood beside the one of the command."""
    words = "[Errno 28] No space left on device.  joblib will operate in serial mode"
    called = f"app.app = lambda **_: warnings.warn({words!r}); app.main()"
    script = f"import warnings; from clusterfl.commands import app; {called}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    """Also where SIGINT is ignored by who started the tests (nohup, or a shell's background): children inherit that."""
    command = [sys.executable, "-m", "clusterfl", "run", "--set", "rounds=100000", "--set", "engine.name=serial"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "round 1/" in line:
                break
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait() == 130
    assert "interrupted" in rest and "Traceback" not in rest


def test_help_and_version() -> None:
    text = call("--help").stdout
    assert all(command in text for command in ("run", "compare", "methods", "datasets", "models"))
    assert "clusterfl run --set method.name=fedavg" in call("run", "--help").stdout
    assert call("--version").stdout.strip() == __import__("clusterfl").__version__
    assert call("runn").exit_code == 2 and call("run", "--sett", "x").exit_code == 2


def test_help_is_quick_because_it_loads_no_pytorch() -> None:
    code = "import sys, clusterfl.commands.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
