"""Many clients and many rounds."""

from __future__ import annotations

import gc
import json
import os
import resource
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

import clusterfl
from clusterfl.callback import Callback, Moment
from clusterfl.config import Config
from clusterfl.data.population import Population

from .common import Tally, assert_ok, launcher

MB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most there ever was, since :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def bytes_of(population: Population) -> int:
    tensors = [t for s in (population.train, population.test) for t in (s.x, s.y, s.rows, s.offsets)]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def crowd(clients: int, rounds: int, participation: float, out: str) -> None:
    """A checkpointed run with many clients; what it took is written to ``out``."""
    gc.collect()
    empty = resident()
    forget_peak()
    settings = [f"rounds={rounds}", f"participation={participation}", f"data.clients={clients}", "data.samples=20"]
    config = Config.load(None, [*settings, "data.unseen=0", "engine.name=stacked", "method.name=fesem"])
    outcome = clusterfl.run(config, out=Path(out).parent / f"{clients} clients")
    data = bytes_of(outcome.population)
    found = {"clients": clients, "empty": empty, "data": data, "peak": peak(), "seconds": outcome.seconds}
    Path(out).write_text(json.dumps(found))


def many_clients(tally: Tally, amount: int, folder: Path) -> None:
    """Ten times the clients, all of them at the start and 1 % at a time after it: the peak of memory of the whole run,
    its results written, data apart, within 1.3 times."""
    rounds, share = (20, 0.01) if amount >= 10_000 else (3, 0.05)
    found: list[dict[str, Any]] = []
    for clients in (amount // 10, amount):
        out = folder / f"{clients}.json"
        assert_ok(launcher().run("load.crowd", clients, rounds, share, str(out)))
        found.append(json.loads(out.read_text()))
    few, many = found
    ratio = (many["peak"] - many["data"]) / (few["peak"] - few["data"])
    with tally.case(f"{amount} clients"):
        assert ratio <= 1.3, f"{ratio:.2f} times the memory of a tenth of the clients"
    texts = [
        f"{f['clients']:,} clients: peak {f['peak'] / MB:.0f} MB ({f['data'] / MB:.1f} MB of it data, "
        f"{f['empty'] / MB:.0f} MB before the run)"
        for f in found
    ]
    own = [f["peak"] - f["data"] - f["empty"] for f in found]
    tally.figures = (
        f"{'; '.join(texts)}; data apart {ratio:.2f} times; what the run itself added: "
        f"{own[0] / MB:.1f} and {own[1] / MB:.1f} MB"
    )


class Notes(Callback):
    """Memory and open files along the way, as (round, bytes, files)."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.taken: list[tuple[int, int, int]] = []

    def on_start(self, moment: Moment) -> None:
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        if moment.round % self.every == 0:
            gc.collect()
            self.taken.append((moment.round, resident(), descriptors()))


def soak(rounds: int, out: str) -> None:
    """A long run with everything switched on; memory and open files are noted along the way."""
    settings = [f"rounds={rounds}", "data.clients=4", "data.clusters=2", "data.samples=10", "data.test_samples=20"]
    settings += ["method.name=ifca", "method.k=2", "data.unseen=0", "engine.name=serial", "local.epochs=1"]
    settings += ["attack.kind=gaussian", "engine.clip_updates=1.0", f"eval_every={max(1, rounds // 500)}"]
    notes = Notes(max(1, rounds // 50))
    clusterfl.run(Config.load(None, settings), out=Path(out).parent / "soak", callbacks=[notes])
    Path(out).write_text(json.dumps(notes.taken))


def many_rounds(tally: Tally, amount: int, folder: Path) -> None:
    """Many rounds: memory grows by no more than the records of the rounds, and no file stays open."""
    out = folder / "soak.json"
    ended = launcher().run("load.soak", amount, str(out))
    assert_ok(ended)
    notes = json.loads(out.read_text())
    # the last round measures more metrics, for which PyTorch imports SymPy (34 MB, once)
    settled = [n for n in notes if amount // 5 <= n[0] < amount]
    (first, before, _), (last, after, _) = settled[0], settled[-1]
    half = len(settled) // 2  # the median of many slopes: a leak is in all of them, a step once in a run is not
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(settled, settled[half:], strict=False))
    files = {n[2] for n in notes}
    with tally.case("memory"):
        assert slope < SLOPE, f"{slope:.0f} bytes a round"
    with tally.case("open files"):
        assert len(files) == 1, f"between {min(files)} and {max(files)}"
    tally.figures = (
        f"{amount:,} rounds in {ended.seconds:.0f} s: {before / MB:.1f} MB at round {first:,}, {after / MB:.1f} MB at "
        f"round {last:,}, {slope / 1024:.2f} KB a round; {max(files)} files open"
    )


SLOPE = 4096  # bytes: a round's record, which is kept until the end, and nothing else
