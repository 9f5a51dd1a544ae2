"""Processes that are killed, the same run in many ways, folders that are taken."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.config.methods import write_method
from clusterfl.engines import codec
from clusterfl.methods import METHODS
from clusterfl.runs.checkpoint import newest_snapshot
from tests.folders import contents
from tests.methods.small import small_method

from .common import Launcher, Tally, assert_ok, launcher

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


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of all that a run left behind, and of its last checkpoint."""
    found = {
        name: data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
        for name, data in contents(folder).items()
    }
    last = newest_snapshot(folder)
    found["checkpoint"] = codec.pack([last.round, last.state, last.kept, last.traffic, last.account])
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


def kill_at_random(tally: Tally, amount: int, folder: Path, workers: int = 1) -> None:
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


# -- the same seed, the same folder -----------------------------------------------------------------


def same_seed(tally: Tally, amount: int, folder: Path) -> None:
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
    from clusterfl.runs.folder import exclusive

    with exclusive(Path(folder)):
        Path(folder, "taken").touch()
        time.sleep(3600)


def two_runs(tally: Tally, amount: int, folder: Path) -> None:
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
