"""Writes that are cut off: by a kill in the middle of one, or by a disk that is full."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from clusterfl.engines import Serial, codec
from clusterfl.loop import Simulation
from clusterfl.record import Schedule
from clusterfl.runs.checkpoint import newest_snapshot
from clusterfl.testing.small import small_population
from tests.methods.small import small_method

from .common import Tally, assert_ok, command, launcher, saver, task_for
from .kills import COMMAND, assert_same, config, fingerprint, go_on, written


@cache
def prepared() -> tuple[Simulation, Simulation]:
    """A simulation after one round and after two."""
    sims = []
    for rounds in (1, 2):
        population = small_population()
        sim = Simulation(small_method("fedper"), population, Serial(task_for(population), population), Schedule(rounds))
        sim.start()
        for _ in range(rounds):
            sim.step()
        sims.append(sim)
    return sims[0], sims[1]


def save_up_to(folder: Path, rounds: int) -> None:
    """Checkpoints as a run writes them."""
    saved, (one, two) = saver(folder), prepared()
    sim = one if rounds == 1 else two
    for t in range(rounds + 1):
        saved.save(at_round(sim, t))


def at_round(sim: Simulation, t: int) -> Simulation:
    """``sim`` as it would look after round t; its state is the last one's, which is all that a writer needs."""
    copy = Simulation(sim.method, sim.population, sim.engine, Schedule(2))
    copy.state, copy.round, copy.records = sim.state, t, sim.records[: t + 1]
    return copy


def die_in_save(folder: str, how: str, share: float) -> None:
    """Saves round 2 and kills itself at a point of it."""
    from clusterfl.runs import files

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    target = {"journal": "records.log", "checkpoint": ".round-000002.ckpt.tmp"}.get(how)
    if target:
        real = Path.open

        def opened(path: Path, *args: Any, **kwargs: Any) -> Any:
            file = real(path, *args, **kwargs)
            return _Dying(file, share, die) if path.name == target else file

        Path.open = opened  # type: ignore[method-assign, assignment]
    elif how == "before rename":
        Path.replace = lambda *_: die()  # type: ignore[method-assign, assignment]
    elif how == "after rename":
        files.sync_folder = lambda *_: die()  # type: ignore[assignment]
    else:
        Path.unlink = lambda *_, **__: die()  # type: ignore[method-assign, assignment]
    saver(Path(folder)).save(at_round(prepared()[1], 2))


class _Dying:
    """A file that is written up to a share of what it is given, and then everything ends."""

    def __init__(self, file: Any, share: float, die: Callable[[], None]) -> None:
        self.file, self.share, self.die = file, share, die

    def __enter__(self) -> _Dying:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: int(self.share * len(data))])
        self.file.flush()
        self.die()


def kill_in_write(tally: Tally, amount: int, folder: Path) -> None:
    """SIGKILL during the write of a checkpoint or of its journal, at a random offset, or around the rename."""
    draw = random.Random(3)
    before, (one, two) = folder / "before", prepared()
    save_up_to(before, 1)
    points = ["checkpoint"] * 6 + ["journal"] * 2 + ["before rename", "after rename", "prune"]
    got = {1: 0, 2: 0}
    process = launcher(2)  # one of its own: it trains, which its children then cannot
    process.warm("writes.prepared")
    for j in range(amount):
        how, share, mine = draw.choice(points), draw.random(), folder / f"{j}"
        shutil.copytree(before, mine)
        with tally.case(f"{how} at {share:.3f}"):
            ended = process.run("writes.die_in_save", str(mine), how, share)
            assert ended.status == -signal.SIGKILL, f"it was not killed: {ended.said[-300:]}"
            population = small_population()
            sim = Simulation(one.method, population, Serial(task_for(population), population), Schedule(2))
            assert saver(mine).restore(sim), "no checkpoint was found"
            assert sim.round in (1, 2) and len(sim.records) == sim.round + 1
            whole = one if sim.round == 1 else two
            assert codec.pack(sim.state) == codec.pack(whole.state), "its state is another"
            assert codec.pack(sim.engine.states()) == codec.pack(whole.engine.states()), "clients keep others"
            got[sim.round] += 1
        shutil.rmtree(mine)
    tally.figures = f"{got[1]} went on from the checkpoint before, {got[2]} from the new one"


def full_disk(pattern: str, after: int, *argv: str) -> int:
    """The command line on a disk that is full from the ``after``-th write to a file of that name on."""
    real, seen = Path.open, 0

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if path.match(pattern) and ("w" in mode or "a" in mode):
            seen += 1
            if seen > after:
                return _Full(real(path, mode, *args, **kwargs))
        return real(path, mode, *args, **kwargs)

    Path.open = opened  # type: ignore[method-assign, assignment]
    return command(*argv)


class _Full(_Dying):
    """A file on a full disk: half of what is written arrives."""

    def __init__(self, file: Any) -> None:
        def fail() -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        super().__init__(file, 0.5, fail)


def small_files(most: int, *argv: str) -> int:
    """The command line where the system lets no file grow beyond ``most`` bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return command(*argv)


def disk_full(tally: Tally, amount: int, folder: Path) -> None:
    """No space for a checkpoint, the journal, the log or the results; then space again, and a resume."""
    places = [(".round-*.tmp", 3), ("records.log", 3), ("rounds.jsonl", 3)]
    places += [(".metrics.parquet.tmp", 0), (".cluster-0.safetensors.tmp", 0), (".summary.json.tmp", 0)]
    process = launcher()
    whole = folder / "whole"
    chosen = written(whole, config("ifca", "serial"))
    assert_ok(process.run(COMMAND, "run", chosen, "--out", str(whole), "--quiet"))
    unbroken = fingerprint(whole)
    for j in range(amount):
        mine = folder / f"{j}"
        argv = ["run", chosen, "--out", str(mine), "--quiet"]
        with tally.case(places[j][0] if j < len(places) else "RLIMIT_FSIZE"):
            if j < len(places):
                ended = process.run("writes.full_disk", *places[j], *argv)
            else:  # the system's own limit rather than a feigned one
                ended = process.run("writes.small_files", 3000, *argv)
            assert ended.status == 2, f"exit {ended.status}: {ended.said[-300:]}"
            said = ended.said.strip().splitlines()
            assert len(said) == 1 and "could not be written" in said[0], ended.said[-300:]
            if j in (0, 1, 2):
                newest_snapshot(mine)
            assert_ok(process.run(COMMAND, *go_on(mine, chosen)))
            assert_same(fingerprint(mine), unbroken)
