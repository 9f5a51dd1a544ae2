"""What the rows share: counting, small methods, and processes that can be killed."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from clusterfl.config import CheckpointConfig
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.runs.checkpoint import Checkpoints
from clusterfl.task import Task
from clusterfl.testing.small import small_population, small_task

TESTS = Path(__file__).parent.parent


@dataclass
class Tally:
    """How often a promise was put to the test, and how often it held."""

    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)
    figures: str = ""

    @contextmanager
    def case(self, what: str) -> Iterator[None]:
        """One try: it holds unless something is raised."""
        self.tried += 1
        try:
            yield
        except Exception as e:
            self.failures.append(f"{what}: {type(e).__name__}: {' '.join(str(e).split())[:500]}")
        else:
            self.held += 1


def task_for(population: Population, module: Any = None) -> Task:
    task = small_task() if module is None else Task(module, population.classes)
    return task.with_public(None if population.indicators is None else population.indicators[0])


def with_clients(changed: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Population:
    """The small population, with other training data for some of its clients."""
    base = small_population()
    parts = [changed.get(i, base.train.of(i)) for i in range(len(base.train))]
    return replace(base, train=Shards.from_parts(parts))


def saver(folder: Path) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig(), config="c", data="d", version="v")


# -- processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a process ended: ``status`` is its exit code, or minus the signal that killed it."""

    status: int
    seconds: float
    said: str


class Launcher:
    """A process with everything imported that forks others: real processes that start in milliseconds.

    The launcher itself does the killing, before it collects the child, so that no other process can be hit.
    """

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        command = [sys.executable, "-c", "from tests.faults.common import serve; serve()"]
        self.process = subprocess.Popen(
            command, cwd=TESTS.parent, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, function: str, *args: Any, kill: float | None = None, watch: Path | None = None) -> Ended:
        """``module.function(*args)`` in a process of its own.

        ``kill``: SIGKILL after so many seconds, counted from when ``watch`` exists, if that is given.
        """
        return self._order({"function": function, "args": args, "kill": kill, "watch": watch and str(watch)})

    def warm(self, function: str) -> None:
        """``module.function()`` in the launcher itself, so that its children find the answer in its cache.

        Where it trains anything, the children can train nothing: PyTorch forbids that after a fork.
        """
        self._order({"function": function, "warm": True})

    def _order(self, order: dict[str, Any]) -> Ended:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def assert_ok(ended: Ended) -> None:
    assert ended.status == 0, f"exit {ended.status}: {ended.said[-400:]}"


@cache
def launcher(number: int = 0) -> Launcher:
    """One of several launchers, started when it is first asked for and common to all rows."""
    made = Launcher()
    atexit.register(made.close)
    return made


def serve() -> None:
    """The launcher's side: one order a line, one answer a line."""
    import clusterfl.commands.resume
    import clusterfl.commands.run
    import clusterfl.runs.progress
    import clusterfl.runs.run  # noqa: F401
    from clusterfl.config import Config

    Config.load()  # what is imported here is not imported by every child again
    import sklearn.datasets
    import sklearn.metrics  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("warm"):
            _find(order["function"])()
            answers.write(json.dumps({"status": 0, "seconds": 0.0, "said": ""}) + "\n")
            answers.flush()
            continue
        with open(os.devnull, "rb") as nothing, _scratch() as said:  # noqa: PTH123
            began = time.monotonic()
            pid = os.fork()
            if not pid:
                os.dup2(nothing.fileno(), 0)
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                _child(order)
            status = _guarded(pid, order["kill"], order["watch"])
            seconds = time.monotonic() - began
            said.seek(0)
            words = said.read().decode(errors="replace")
        json.dump({"status": status, "seconds": seconds, "said": words[-4000:]}, answers)
        answers.write("\n")
        answers.flush()


def _find(function: str) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(f"tests.faults.{module}"), name)


def _scratch() -> Any:
    import tempfile

    return tempfile.TemporaryFile()


def _child(order: dict[str, Any]) -> None:
    code = 1
    try:
        sys.modules["__main__"].__spec__ = None  # worker processes need nothing of this one
        result = _find(order["function"])(*order["args"])
        code = result if isinstance(result, int) else 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _guarded(pid: int, kill: float | None, watch: str | None) -> int:
    """Waits for a child, and kills it when its time has come."""
    began: float | None = None if watch else time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG if kill is not None else 0)
        if done:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if began is None and watch and Path(watch).exists():
            began = now
        if began is not None and kill is not None and now - began >= kill:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)


def command(*argv: str) -> int:
    """The command line, as the ``clusterfl`` script runs it."""
    from clusterfl.commands.app import app

    app(list(argv), prog_name="clusterfl")
    return 0
