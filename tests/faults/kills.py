"""Processes that are killed, disks that are full, folders that are taken: T1, T3, T17, T30, T31."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from clusterfl import codec
from clusterfl.checkpoint import CheckpointConfig, Checkpoints, newest_snapshot
from clusterfl.config import Config, write_method
from clusterfl.engines import Serial
from clusterfl.loop import Schedule, Simulation
from clusterfl.methods import METHODS
from clusterfl.testing import small_population

from .common import Launcher, Tally, assert_ok, launcher, small_method, task_for

ENGINES = ("serial", "stacked", "pool")
COMMAND = "common.command"


def config(name: str, engine: str | dict[str, Any], rounds: int = 5) -> Config:
    """A run that takes a second: rotated digits, a net with one hidden layer."""
    method = small_method(name)
    data = {"clients": 8, "clusters": 2, "samples": 20, "test_samples": 40, "unseen": 2, "indicators": 2}
    table: dict[str, Any] = {
        "rounds": rounds,
        "data": data,
        "model": {"name": "mlp", "widths": [8]},
        "local": {"lr": 0.1, "batch": 10},
        "method": write_method(method),
        "engine": engine if isinstance(engine, dict) else {"name": engine, "workers": 2},
    }
    return Config.parse(table)


def written(folder: Path, chosen: Config) -> str:
    """The config's file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".toml")
    path.write_text(chosen.toml(), encoding="utf-8")
    return str(path)


def timeless(value: Any) -> Any:
    """Without wall-clock times, the only thing that may differ."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of all that a run left behind, and of its last checkpoint."""
    found: dict[str, bytes] = {}
    for path in sorted([*folder.glob("*.parquet"), *(folder / "models").iterdir()]):
        found[path.name] = path.read_bytes()
    rounds = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    found["rounds.jsonl"] = json.dumps([timeless(json.loads(line)) for line in rounds]).encode()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found["summary.json"] = json.dumps(timeless(summary), sort_keys=True).encode()
    last = newest_snapshot(folder)
    found["checkpoint"] = codec.pack([last.round, last.state, last.kept, last.down, last.up])
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def assert_same(mine: dict[str, str], theirs: dict[str, str]) -> None:
    different = [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    assert not different, f"these differ: {', '.join(different)}"


def go_on(folder: Path, chosen: str) -> list[str]:
    """What a user would type after a crash."""
    if (folder / "config.toml").exists():
        return ["resume", str(folder), "--quiet"]
    return ["run", chosen, "--out", str(folder), "--quiet"]


def spread(jobs: list[Callable[[Launcher], None]], workers: int) -> None:
    """Jobs over several launchers."""
    free = [launcher(j) for j in range(workers)]

    def one(job: Callable[[Launcher], None]) -> None:
        mine = free.pop()
        try:
            job(mine)
        finally:
            free.append(mine)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(one, job) for job in jobs]:
            future.result()


def t1(tally: Tally, amount: int, folder: Path, workers: int = 1) -> None:
    """SIGKILL at a random time, several times in some runs; resumed; compared with the unbroken run."""
    draw = random.Random(1)
    names = draw.sample(list(METHODS), len(METHODS))
    pairs = [(name, engine) for name in names for engine in ENGINES]
    if amount < len(pairs):  # not every method on every engine, but many of both
        pairs = [(names[j % len(names)], ENGINES[j % 3]) for j in range(amount)]
    kills = {pair: amount // len(pairs) + (j < amount % len(pairs)) for j, pair in enumerate(pairs)}
    wholes: dict[tuple[str, str], tuple[dict[str, str], float]] = {}
    where = {"before the first checkpoint": 0, "between two": 0, "after the last": 0}

    def whole(name: str, engine: str) -> Callable[[Launcher], None]:
        def job(process: Launcher) -> None:
            place = folder / f"{name}-{engine}-whole"
            ended = process.run(COMMAND, "run", written(place, config(name, engine)), "--out", str(place), "--quiet")
            assert_ok(ended)
            wholes[name, engine] = fingerprint(place), ended.seconds

        return job

    def broken(name: str, engine: str, times: int, seed: int) -> Callable[[Launcher], None]:
        def job(process: Launcher) -> None:
            expected, seconds = wholes[name, reference(engine)]
            mine = folder / f"{name}-{engine}"
            own, left = random.Random(seed), times
            while (
                left
            ):  # a run that is over before its time has come is compared too, and the rest are dealt to another
                chosen, done = written(mine, config(name, engine)), 0
                failed, found = "", {}
                while done < left and not failed:
                    after, watch = moment(own, mine, seconds)
                    ended = process.run(COMMAND, *go_on(mine, chosen), kill=after, watch=watch)
                    if ended.status != -signal.SIGKILL:
                        break
                    done += 1
                    last = newest(mine)
                    where[list(where)[0 if last < 0 else 1 if last < ROUNDS else 2]] += 1
                else:
                    ended = process.run(COMMAND, *go_on(mine, chosen))
                if ended.status:
                    failed = f"exit {ended.status}: {ended.said[-300:]}"
                else:
                    found = fingerprint(mine)
                for _ in range(done or bool(failed)):
                    with tally.case(f"{name} on {engine}, {done} kills"):
                        assert not failed, failed
                        assert_same(found, expected)
                left = 0 if failed else left - done
                shutil.rmtree(mine)

        return job

    needed = sorted({(name, reference(engine)) for name, engine in pairs})
    spread([whole(*pair) for pair in needed], workers)
    spread([broken(*pair, times, seed) for seed, (pair, times) in enumerate(kills.items())], workers)
    landed = ", ".join(f"{n} {what}" for what, n in where.items())
    tally.figures = f"{len({n for n, _ in pairs})} methods, {len({e for _, e in pairs})} engines; kills landed {landed}"


ROUNDS = 5


def reference(engine: str) -> str:
    """A pool has the same bits as one process that stacks as its workers do."""
    return "serial" if engine == "serial" else "stacked"


def newest(folder: Path) -> int:
    """The round of the newest checkpoint, -1 without one."""
    return max((int(p.stem[6:]) for p in (folder / "checkpoints").glob("round-*.ckpt")), default=-1)


def moment(draw: random.Random, folder: Path, seconds: float) -> tuple[float, Path | None]:
    """When to kill: so long after the start, or after some checkpoint that is still to come."""
    coming = range(newest(folder) + 1, ROUNDS + 1)
    if not coming or draw.random() < 0.2:
        return draw.random() * seconds, None
    return draw.random() * seconds / ROUNDS, folder / "checkpoints" / f"round-{draw.choice(coming):06d}.ckpt"


# -- T3 -----------------------------------------------------------------------------------------------


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


def saver(folder: Path) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig(), config="c", data="d", version="v")


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
    from clusterfl import files

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


def t3(tally: Tally, amount: int, folder: Path) -> None:
    """SIGKILL during the write of a checkpoint or of its journal, at a random offset, or around the rename."""
    draw = random.Random(3)
    before, (one, two) = folder / "before", prepared()
    save_up_to(before, 1)
    points = ["checkpoint"] * 6 + ["journal"] * 2 + ["before rename", "after rename", "prune"]
    got = {1: 0, 2: 0}
    process = launcher(2)  # one of its own: it trains, which its children then cannot
    process.warm("kills.prepared")
    for j in range(amount):
        how, share, mine = draw.choice(points), draw.random(), folder / f"{j}"
        shutil.copytree(before, mine)
        with tally.case(f"{how} at {share:.3f}"):
            ended = process.run("kills.die_in_save", str(mine), how, share)
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


# -- T17 ----------------------------------------------------------------------------------------------


def full_disk(pattern: str, after: int, *argv: str) -> int:
    """The command line on a disk that is full from the ``after``-th write to a file of that name on."""
    from .common import command

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

    from .common import command

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return command(*argv)


def t17(tally: Tally, amount: int, folder: Path) -> None:
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
                ended = process.run("kills.full_disk", *places[j], *argv)
            else:  # the system's own limit rather than a feigned one
                ended = process.run("kills.small_files", 3000, *argv)
            assert ended.status == 2, f"exit {ended.status}: {ended.said[-300:]}"
            said = ended.said.strip().splitlines()
            assert len(said) == 1 and "could not be written" in said[0], ended.said[-300:]
            if j in (0, 1, 2):
                newest_snapshot(mine)
            assert_ok(process.run(COMMAND, *go_on(mine, chosen)))
            assert_same(fingerprint(mine), unbroken)


# -- T30, T31 -----------------------------------------------------------------------------------------


def t30(tally: Tally, amount: int, folder: Path) -> None:
    """The same seed with one process, one and two workers, in fresh processes: the same bits."""
    names = ["ifca", "fedper", "fesem", "cfl", "md-icfl"]
    variants: list[tuple[str, dict[str, Any]]] = [
        ("stacked", {"name": "stacked"}),
        ("pool of 1", {"name": "pool", "workers": 1, "stacked": True}),
        ("pool of 2", {"name": "pool", "workers": 2, "stacked": True}),
        ("stacked again", {"name": "stacked"}),
    ]
    process = launcher()
    for j in range(amount):
        name = names[j % len(names)]
        with tally.case(name):
            found = []
            for what, engine in variants:
                place = folder / f"{name}-{j}-{what.replace(' ', '-')}"
                chosen = written(place, config(name, engine, 3))
                assert_ok(process.run(COMMAND, "run", chosen, "--out", str(place), "--quiet"))
                found.append(fingerprint(place))
            for other in found[1:]:
                assert_same(found[0], other)


def hold(folder: str) -> None:
    """Takes a run's folder and never lets go."""
    from clusterfl.checkpoint import exclusive

    with exclusive(Path(folder)):
        Path(folder, "taken").touch()
        time.sleep(3600)


def t31(tally: Tally, amount: int, folder: Path) -> None:
    """A second run on a folder that is in use is refused; once the first is killed, it is not."""
    first, second = launcher(0), launcher(1)
    with ThreadPoolExecutor(1) as pool:
        for j in range(amount):
            mine = folder / f"{j}"
            chosen = written(mine, config("fedavg", "serial", 1))
            with tally.case(f"run {j}"):
                holding = pool.submit(first.run, "kills.hold", str(mine), kill=0.0, watch=mine / "release")
                while not (mine / "taken").exists():
                    time.sleep(0.01)
                refused = second.run(COMMAND, "run", chosen, "--out", str(mine), "--quiet")
                (mine / "release").touch()
                assert holding.result().status == -signal.SIGKILL
                assert refused.status == 2 and "in use by another run" in refused.said, refused.said
                assert not (mine / "config.toml").exists(), "the second wrote into the folder"
                assert_ok(second.run(COMMAND, "run", chosen, "--out", str(mine), "--quiet"))
