"""A machine that gives little: shared memory, open files, folders that may not be written, cores of a Ray cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from clusterfl.engines import Serial
from clusterfl.methods.fedavg import FedAvg
from clusterfl.testing import assert_equal, play, small_population, small_task
from tests.engines.probe import RULE
from tests.processes import wait_for

from .common import TESTS, Tally, assert_ok, launcher
from .kills import COMMAND, assert_same, config, fingerprint, written
from .load import bytes_of

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
CLUSTERFL = (sys.executable, "-m", "clusterfl")
POOL = {"name": "pool", "workers": 2, "stacked": True}


def said_by(*command: str) -> tuple[int, str]:
    """How a process ended and what it said."""
    done = subprocess.run(
        command, env=ENVIRONMENT, cwd=TESTS.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    return done.returncode, done.stderr


# -- /dev/shm and ulimit -----------------------------------------------------------------------------


def small_shared_memory(tally: Tally, amount: int, folder: Path) -> None:
    """The default engine of many containers: worker processes, and next to no /dev/shm. Really so, where a mount of
    one's own is allowed."""
    ways = [("64 MB", 64, 20_000, 500), ("1 MB", 1, 1_000, 200), ("none", None, 200, 20)]
    within = next((w for w in (("unshare", "-m"), ("unshare", "-rm")) if _works(*w, *_mounting(1), "true")), None)
    if within is None:
        tally.figures = "not allowed here"
    for what, most, clients, samples in ways[-amount:]:
        with tally.case(what):
            fingerprints = []
            for name, engine in (("whole", {"name": "stacked"}), ("starved", POOL)):
                out = folder / f"{what}-{name}"
                chosen = config("fedavg", engine, 2)
                data = {**chosen.data.__dict__, "clients": clients, "samples": samples, "unseen": 0}
                chosen = chosen.model_copy(update={"data": type(chosen.data)(**data), "participation": 0.01})
                assert bytes_of(chosen.population()) > (most or 0) << 20, "there is room for what clients hold"
                argv = [*CLUSTERFL, "run", written(out, chosen), "--out", str(out)]
                starved = [*within, *_mounting(most)] if name == "starved" and within is not None else []
                code, said = said_by(*starved, *argv)
                assert code == 0, said[-400:]
                assert not starved or "/dev/shm" in said, f"nothing was said: {said[-400:]}"
                fingerprints.append(fingerprint(out))
            assert_same(*fingerprints)
    if amount == len(ways):
        with tally.case("two runs at a time, none"):
            chosen = written(folder / "jobs", config("fedavg", "serial", 1))
            argv = [*CLUSTERFL, "sweep", chosen, "--grid", "local.lr=0.1,0.2", "--jobs", "2"]
            starved = () if within is None else (*within, *_mounting(None))
            code, said = said_by(*starved, *argv, "--out", str(folder / "jobs"))
            assert code == 0 and (within is None or "/dev/shm" in said), said[-400:]
            assert len(list((folder / "jobs" / "runs").glob("*/summary.json"))) == 2


def _mounting(most: int | None) -> tuple[str, ...]:
    """A command that runs the rest with a /dev/shm of so many MB, or with one that nobody may write."""
    how = "ro" if most is None else f"size={most}m"
    return ("sh", "-c", f'mount -t tmpfs -o {how} tmpfs /dev/shm && exec "$@"', "sh")


def _works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode


def few_files(most: int, *argv: str) -> int:
    """The command line where the system allows so many open files."""
    import resource

    from .common import command

    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return command(*argv)


def few_open_files(tally: Tally, amount: int, folder: Path) -> None:
    """Thousands of clients that keep something, worker processes, and few files that may be open."""
    process = launcher()
    for most, clients in ((128, 1_000), (256, 3_000), (1024, 20_000))[:amount]:
        with tally.case(f"ulimit -n {most}, {clients} clients"):
            found = []
            for name, engine in (("whole", {"name": "stacked"}), ("starved", POOL)):
                out = folder / f"{most}-{name}"
                chosen = config("fedper", engine, 2)
                data = {**chosen.data.__dict__, "clients": clients, "samples": 5, "unseen": 0}
                path = written(out, chosen.model_copy(update={"data": type(chosen.data)(**data)}))
                limit = most if name == "starved" else 1024
                assert_ok(process.run("surroundings.few_files", limit, "run", path, "--out", str(out), "--quiet"))
                found.append(fingerprint(out))
            assert_same(*found)


# -- folders -----------------------------------------------------------------------------------------


def forbidden_folders(tally: Tally, amount: int, folder: Path) -> None:
    """Folders that may not be written, by every command that writes: one sentence and exit code 2."""
    run = folder / "run"
    chosen = written(run, config("fedavg", "serial", 1))
    assert_ok(launcher().run(COMMAND, "run", chosen, "--out", str(run), "--quiet"))
    held = folder / "held"
    shutil.copytree(run, held)
    (held / "summary.json").unlink()
    closed = folder / "closed"
    closed.mkdir()
    commands = {
        "run": ("run", chosen, "--out", str(closed / "a")),
        "run in it": ("run", chosen, "--out", str(closed)),
        "compare": ("compare", chosen, "--methods", "local", "--seeds", "0", "--out", str(closed / "b")),
        "resume": ("resume", str(held)),
        "report": ("report", str(run), "--out", str(closed / "r.html")),
    }
    plain = () if os.geteuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")  # root may write anything
    for place in (closed, held):
        place.chmod(0o555)
    try:
        for what, argv in list(commands.items())[:amount]:
            with tally.case(what):
                code, said = said_by(*plain, *CLUSTERFL, *argv)
                heard = [line for line in said.splitlines() if "loading PyTorch" not in line]
                assert code == 2 and len(heard) == 1 and heard[0].startswith("error: "), said[-600:]
                assert not any(closed.iterdir()), "something was written"
    finally:
        for place in (closed, held):
            place.chmod(0o755)


def two_comparisons(tally: Tally, amount: int, folder: Path) -> None:
    """Two `compare` into one folder at a time: one is refused in a sentence, the other ends as if it were alone."""
    first, second = launcher(0), launcher(1)
    for j in range(amount):
        out = folder / f"{j}"
        chosen = written(folder / f"c{j}", config("fedavg", "serial", 30))
        argv = ("compare", chosen, "--methods", "local,fedavg", "--seeds", "0", "--out", str(out), "--quiet")
        with tally.case(f"comparison {j}"), ThreadPoolExecutor(1) as pool:
            one = pool.submit(first.run, COMMAND, *argv)
            while not (out / ".lock").exists() and not one.done():
                time.sleep(0.005)
            two = second.run(COMMAND, *argv)
            ended = sorted((one.result(), two), key=lambda e: e.status)
            assert [e.status for e in ended] == [0, 2], [e.said[-300:] for e in ended]
            said = ended[1].said.strip().splitlines()
            assert len(said) == 1 and "in use by another run" in said[0], ended[1].said[-300:]
            assert len(list((out / "runs").glob("*/summary.json"))) == 2


# -- signals and rounds that are lost ------------------------------------------------------------------


def interrupted_while_stopped(tally: Tally, amount: int, folder: Path) -> None:
    """Ctrl-C in a run one of whose workers stands still: it ends at once, says how to go on, and can."""
    whole = folder / "whole"
    assert_ok(launcher().run(COMMAND, "run", written(whole, config("fedavg", "stacked")), "--out", str(whole)))
    for j in range(amount):
        out = folder / f"{j}"
        chosen = written(out, config("fedavg", {"name": "pool", "workers": 2, "stacked": True}))
        with tally.case(f"run {j}"):
            words = [*CLUSTERFL, "run", chosen, "--out", str(out), "--quiet", "--set", "rounds=10000"]
            process = subprocess.Popen(
                words,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            wait_for(out / "checkpoints" / "round-000002.ckpt", process)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            workers = [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
            assert workers, "no worker was found"
            os.kill(int(workers[-1]), signal.SIGSTOP)
            time.sleep(0.5)  # until the run waits for it
            process.send_signal(signal.SIGINT)
            try:
                _, said = process.communicate(timeout=240)  # it would hang for ever
            finally:
                process.kill()
            assert process.returncode == 130 and "go on with: clusterfl resume" in said, said[-300:]


def nothing_but_lost_rounds(tally: Tally, amount: int, folder: Path) -> None:
    """Steps that are far too long for every client and round: said, and the exit code is not 0."""
    for name in ("fedavg", "local", "fedper")[:amount]:
        with tally.case(name):
            out = folder / name
            chosen = written(out, config(name, "serial", 2))
            ended = launcher().run(
                COMMAND, "run", chosen, "--out", str(out), "--set", "local.lr=3e38", "--set", "local.epochs=3"
            )
            assert ended.status == 1, f"exit {ended.status}: {ended.said[-300:]}"
            assert "Traceback" not in ended.said and "no sound reply" in ended.said, ended.said[-300:]


# -- Ray -----------------------------------------------------------------------------------------------


def no_spare_core(tally: Tally, amount: int, folder: Path) -> None:
    """A Ray cluster that loses an actor and has no core for another goes on with fewer."""
    import ray

    from clusterfl.engines.ray import Ray, connect

    class Holder:
        def ready(self) -> None: ...

    method, task, population = FedAvg(local=RULE), small_task(), small_population()
    expected: Any = play(method, Serial(task, population))
    assert connect(2, None)
    try:
        with patch("clusterfl.engines.ray.START", 5.0), Ray(task, population, workers=2) as actors:
            for j in range(amount):
                with tally.case(f"loss {j}"):
                    holder = ray.remote(num_cpus=1)(Holder).remote()  # waits for a core
                    ray.kill(actors._members[0].actor)
                    ray.get(holder.ready.remote())
                    assert_equal(expected, play(method, actors), "with one actor fewer")
                    assert len(actors._members) == 1
    finally:
        ray.shutdown()
