"""Clients that diverge, workers that stop, little memory to share, checkpoints that lie, folders that cannot be."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

import clusterfl
from clusterfl.config import Config
from clusterfl.engines import Pool, Serial, Stacked, Wire, codec, parallel
from clusterfl.engines.blocks import own_memory
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.loop import Simulation
from clusterfl.method import Method, Single
from clusterfl.methods import FCCA, FedAvg, FedPer, Local
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.runs.checkpoint import read_snapshot
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLASSES, WIDTH, play, small_population, small_task
from clusterfl.tree import is_finite
from tests.methods.small import SETTINGS, small_method

from .common import Tally, saver
from .refusals import refuses

# the first round's steps are far too long, the second's are sound
DIVERGING = SGD(lr=1e30, lr_decay=1e-31, batch=10)


def diverged_once(tally: Tally, amount: int, folder: Path) -> None:
    """Every client diverges in the first round: what it keeps is as before, and the next round trains."""
    fcca: dict[str, Any] = SETTINGS["fcca"]
    methods: list[Method[Any]] = [FedPer(local=DIVERGING), Local(local=DIVERGING)]
    methods.append(FCCA(local=DIVERGING, per=True, **fcca))
    population = small_population()
    cases = [(method, make) for method in methods for make in (Serial, Stacked, Wire)]
    for method, make in cases[:: max(1, len(cases) // amount)]:
        with tally.case(f"{method.name}, {make.__name__.lower()}"):
            guard = Guard(make(small_task(), population), sample=population.train.x[0])
            sim = Simulation(method, population, guard, Schedule(3))
            outcome = sim.run()
            lost = [r.round for r in outcome.records if r.lost]
            assert lost == [1], f"rounds {lost} had no sound reply"
            assert all(is_finite(tree) for tree in guard.states().values()), "NaN is kept"
            mean = outcome.accuracy.mean
            assert mean > 0.4, f"accuracy {mean:.2f} of three classes"


def stopped_worker(tally: Tally, amount: int, folder: Path) -> None:
    """SIGSTOP to a worker at a random time: it is ended, its clients are asked again, the bits are serial's."""
    task, population = small_task(), small_population()
    draw = random.Random(0)
    names = ("fedavg", "fedper", "ifca", "fesem", "cfl")
    with (
        Pool(task, population, workers=2) as pool,
        patch.object(parallel, "POLL", 0.2),
        patch.object(parallel, "SHORTEST", 2.0),
    ):
        for j in range(amount):
            name = names[j % len(names)]
            with tally.case(name):
                serial = Serial(task, population)
                expected = play(small_method(name), serial, rounds=3)
                pool.set_states({})
                member = draw.choice(pool._members)
                timer = threading.Timer(draw.random() * 0.05, _stop, [member.process.pid])
                timer.start()
                found = play(small_method(name), pool, rounds=3)
                timer.join()
                assert_equal(expected, found, "with a stopped worker")
                assert_equal(serial.states(), pool.states(), "what clients keep")


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def little_to_share(tally: Tally, amount: int, folder: Path) -> None:
    """No shared memory for messages, or no open file for answers: they are copied, to the same bits."""
    task, population = small_task(), small_population()
    full: Callable[[int], torch.Tensor] = own_memory
    ways: dict[str, dict[str, Any]] = {
        "no memory": {"shared_memory": full},
        "no files": {"_slots_each": lambda workers: 0},
        "neither": {"shared_memory": full, "_slots_each": lambda workers: 0},
    }
    for what, changes in list(ways.items())[-amount:]:
        with tally.case(what), patch.multiple("clusterfl.engines.pool", **changes):
            expected = play(small_method("fedper"), Serial(task, population))
            with Pool(task, population, workers=1) as pool:
                assert_equal(expected, play(small_method("fedper"), pool), what)


def lying_checkpoint(tally: Tally, amount: int, folder: Path) -> None:
    """Checkpoints whose digests are right and whose content is not: passed over, and the one before is used."""
    population = small_population()
    lies: dict[str, dict[str, Any]] = {
        "round": {"round": "7"},
        "negative round": {"round": -1},
        "traffic": {"traffic": {"up": {"a": 0.5}}},
        "foreign traffic": {"traffic": {"sideways": {}}},
        "kept": {"kept": {"a": {}}},
        "kept text": {"kept": {0: {"head": "x"}}},
        "account": {"account": "none"},
        "state": {"state": 3},
        "another state": {"state": Single({})},
    }
    for what, change in list(lies.items())[:amount]:
        with tally.case(what):
            sim = Simulation(small_method("fedper"), population, Serial(small_task(), population), Schedule(3))
            place = folder / what
            sim.start()
            saver(place).save(sim)
            sim.step()
            saver(place).save(sim)
            newest = sorted((place / "checkpoints").glob("round-*.ckpt"))[-1]
            newest.write_bytes(codec.pack(replace(read_snapshot(newest), **change)))
            fresh = Simulation(small_method("fedper"), population, Serial(small_task(), population), Schedule(3))
            assert saver(place).restore(fresh) and fresh.round == 0


def impossible_places(tally: Tally, amount: int, folder: Path) -> None:
    """Folders, files and numbers that cannot be: one sentence each."""
    small = ["rounds=2", "data.clients=4", "data.clusters=2", "data.samples=10", "engine.name=serial"]
    run = Config.load(None, small)
    (folder / "file").touch()
    (folder / "held" / "config.toml").mkdir(parents=True)
    (folder / "binary").mkdir()
    (folder / "binary" / "config.toml").write_bytes(bytes(range(256)))
    places = {
        "below a file": (folder / "file" / "x", "is a file"),
        "a name of 300 letters": (folder / ("n" * 300), "File name too long"),
        "a config that is a folder": (folder / "held", "Is a directory"),
        "a config that is no text": (folder / "binary", "another run"),
    }
    for what, (place, words) in places.items():
        with tally.case(what):
            refuses(lambda place=place: clusterfl.run(run, out=place), words)  # type: ignore[misc]
    with tally.case("a folder that vanishes"):
        refuses(lambda: clusterfl.run(run, out=folder / "gone", callbacks=[_Removing(folder / "gone")]), "written")
    for setting in ("data.clients=1000000000", "seed=18446744073709551616", "local.lr=1e300"):
        with tally.case(setting):
            refuses(lambda s=setting: Config.load(None, [s]), setting.partition("=")[0])  # type: ignore[misc]


def refused_force(tally: Tally, amount: int, folder: Path) -> None:
    """Runs over an old one that turn out to be impossible: not a byte of the old one is lost."""
    small = ["rounds=2", "data.clients=4", "data.clusters=2", "data.samples=10", "engine.name=serial"]
    clusterfl.run(Config.load(None, [*small, "method.name=fedavg"]), out=folder)
    before = _contents(folder)
    impossible = {
        "privacy.unit": ["method.name=kin", "privacy.clip=1", "privacy.unit=sample"],
        "privacy.sampling": ["method.name=kin", "privacy.clip=1", "privacy.sampling=secret"],
        "data.root": ["data.source=femnist", f"data.root={folder / 'none'}"],
    }
    for what, settings in list(impossible.items())[:amount]:
        with tally.case(what):
            refuses(lambda s=settings: clusterfl.run(Config.load(None, [*small, *s]), out=folder, force=True))  # type: ignore[misc]
            assert _contents(folder) == before, "the old run was touched"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


class _Removing(clusterfl.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_round(self, moment: Any) -> None:
        shutil.rmtree(self.folder)


class _Net(nn.Module):
    """A user's module that drops in its forward pass, one way or another."""

    def __init__(self, drop: Callable[[torch.Tensor], torch.Tensor] | nn.Module) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(WIDTH, 12), drop, nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.drop(self.first(x).reshape(-1, 3, 2, 2))
        answer: torch.Tensor = self.last(hidden.flatten(1))
        return answer


def global_draws(tally: Tally, amount: int, folder: Path) -> None:
    """A user's module that drops: by keys to the same bits whatever the global generator, or it is refused by name."""
    functions: tuple[Callable[..., torch.Tensor], ...]
    functions = (F.dropout, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, F.gumbel_softmax)
    layers = (nn.Dropout, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    population, method = small_population(), FedAvg(local=SGD(lr=0.1, batch=10))
    for function, layer in itertools.islice(itertools.zip_longest(functions, layers), amount):
        with tally.case(function.__name__):
            training = {} if function is F.gumbel_softmax else {"training": True}
            net = _Net(lambda x: function(x, **training))  # noqa: B023
            refuses(lambda: clusterfl.run(population, net, method, rounds=1, engine="serial"), "_Net", "draw nothing")  # noqa: B023
        if layer is not None:
            with tally.case(layer.__name__):
                found = []
                for seed in (1, 2):
                    torch.manual_seed(seed)
                    found.append(clusterfl.run(population, _Net(layer(0.5)), method, rounds=2, engine="serial"))
                assert_equal(*(outcome.served.models for outcome in found), "whatever the global generator")
