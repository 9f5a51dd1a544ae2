"""Files that are damaged, hostile or misspelt: T18-T21."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch

from clusterfl import codec
from clusterfl.checkpoint import CheckpointConfig, CheckpointError, Checkpoints, Snapshot, read_snapshot
from clusterfl.config import _TABLES, ALIASES, Config
from clusterfl.data import readers, sources
from clusterfl.data.own import load as load_own
from clusterfl.data.sources import load_source
from clusterfl.engines import Serial
from clusterfl.errors import ClusterflError, DataError
from clusterfl.loop import Schedule, Simulation
from clusterfl.methods import METHODS
from clusterfl.models import MODELS
from clusterfl.results import load_models, load_modules, write_run
from clusterfl.testing import small_population

from .common import Tally, small_method, task_for


def one_sentence(error: BaseException) -> str:
    said = str(error)
    assert said and "\n" not in said.strip() and "Traceback" not in said, f"not one sentence: {said[:200]!r}"
    return said


def refuses(f: Callable[[], Any], *words: str) -> None:
    """``f`` ends in an error that a user can read."""
    try:
        f()
    except ClusterflError as e:
        said = one_sentence(e)
        for word in words:
            assert word in said, f"{word!r} is not in {said[:200]!r}"
    else:
        raise AssertionError("it was accepted")


# -- T18 ----------------------------------------------------------------------------------------------


def simulation() -> Simulation:
    population = small_population()
    return Simulation(small_method("fedper"), population, Serial(task_for(population), population), Schedule(3))


def saver(folder: Path) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig(), config="c", data="d", version="v")


def t18(tally: Tally, amount: int, folder: Path) -> None:
    """A flipped bit anywhere in the newest checkpoint; then other damage; the one before it is used."""
    draw, whole, sim = random.Random(18), folder / "whole", simulation()
    saved = saver(whole)
    states = {}
    sim.start()
    saved.save(sim)
    while sim.round < 3:
        sim.step()
        saved.save(sim)
        states[sim.round] = codec.pack(sim.state)
    newest, before = (whole / "checkpoints" / f"round-00000{t}.ckpt" for t in (3, 2))
    good, older = newest.read_bytes(), read_snapshot(before)
    other = codec.pack(dataclasses.replace(read_snapshot(newest), format=0))
    damage: list[tuple[str, bytes]] = [("empty", b""), ("zeros", bytes(len(good))), ("an old format", other)]
    damage += [("text", b"hello"), ("a pickle", pickle.dumps({"a": 1})), ("only its checksum", good[:32])]
    damage += [("doubled", good + good), ("other fields", with_field(good)), ("nested deeply", deep())]
    damage += [(f"cut at {n}", good[:n]) for n in draw.sample(range(len(good)), max(amount // 20, 3))]
    for j in range(amount):
        bit = 0 if j == 0 else 8 * len(good) - 1 if j == 1 else draw.randrange(8 * len(good))
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << (bit % 8)
        damage.append((f"bit {bit}", bytes(flipped)))
    fresh = simulation()
    for number, (what, data) in enumerate(damage):
        with tally.case(what):
            newest.write_bytes(data)
            try:
                read_snapshot(newest)
            except CheckpointError as e:
                one_sentence(e)
            else:
                raise AssertionError("it was not noticed")
            fresh.state, fresh.round, fresh.records = None, -1, []
            fresh.engine.set_states({})
            assert saver(whole).restore(fresh) and fresh.round == older.round == 2
            assert codec.pack(fresh.state) == states[2] and len(fresh.records) == 3
            if number % 20 == 0:  # and the run goes on from there
                fresh.step()
                saver(whole).save(fresh)
                assert codec.pack(fresh.state) == states[3] and read_snapshot(newest).round == 3
    tally.figures = f"{amount} flips, {len(damage) - amount} other kinds of damage"


def with_field(good: bytes) -> bytes:
    """A checkpoint of some later version, with a field that this one does not know; its checksum is right."""
    body = good[32:]
    (length,) = struct.unpack_from("<Q", body)
    structure = json.loads(body[8 : 8 + length])
    structure["f"]["mood"] = "good"
    head = json.dumps(structure).encode()
    body = struct.pack("<Q", len(head)) + head + body[8 + length :]
    return hashlib.sha256(body).digest() + body


def deep() -> bytes:
    head = b'{"$l":[' * 100_000 + b"]}" * 100_000
    body = struct.pack("<Q", len(head)) + head
    return hashlib.sha256(body).digest() + body


# -- T19 ----------------------------------------------------------------------------------------------


def bomb(path: Path) -> Any:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (path,)

    return Bomb()


def t19(tally: Tally, amount: int, folder: Path) -> None:
    """Checkpoints, messages, models and datasets with a pickle in them: refused, and nothing in it is run."""
    mark = folder / "it was run"
    evil = pickle.dumps(bomb(mark))
    pickle.loads(evil)
    assert mark.exists(), "the payload should work where pickles are trusted"
    mark.unlink()

    def checkpoint(data: bytes) -> None:
        path = folder / "round-000001.ckpt"
        path.write_bytes(data)
        read_snapshot(path)

    def message() -> None:
        head = json.dumps({"$c": Snapshot.tag(), "f": {}}).encode()
        body = struct.pack("<Q", len(head)) + head + evil
        checkpoint(hashlib.sha256(body).digest() + body)

    def foreign_class() -> None:
        head = json.dumps({"$c": "pathlib:Path", "f": {"a": str(mark)}}).encode()
        body = struct.pack("<Q", len(head)) + head + b"\x02\0\0\0\0\0\0\0{}"
        checkpoint(hashlib.sha256(body).digest() + body)

    def npz() -> None:
        place = folder / "clients"
        place.mkdir(exist_ok=True)
        boxed = np.empty(2, dtype=object)
        boxed[:] = [bomb(mark), bomb(mark)]
        np.savez(place / "a.npz", x=boxed, y=np.zeros(2, dtype=np.int64))
        load_own(f"folder:{place}", folder)

    def cifar() -> None:
        path = folder / "data_batch_1"
        path.write_bytes(pickle.dumps({b"data": bomb(mark), b"labels": [0]}, protocol=2))
        readers.read_cifar(path, b"labels")

    def model() -> None:
        place = a_run(folder / "models")
        stream = io.BytesIO()
        torch.save({"w": bomb(mark)}, stream)
        manifest = json.loads((place / "models" / "manifest.json").read_text())
        entry = manifest["clusters"][0]
        (place / "models" / entry["file"]).write_bytes(stream.getvalue())
        entry["sha256"] = hashlib.sha256(stream.getvalue()).hexdigest()
        (place / "models" / "manifest.json").write_text(json.dumps(manifest))
        load_models(place)

    tries: dict[str, Callable[[], Any]] = {
        "a checkpoint that is a pickle": partial(checkpoint, evil),
        "a message with a pickle for tensors": message,
        "a message that names a foreign class": foreign_class,
        "an npz file with objects": npz,
        "a CIFAR batch": cifar,
        "a model with the right checksum": model,
    }
    for what, attempt in list(tries.items())[:amount]:
        with tally.case(what):
            refuses(attempt)
            assert not mark.exists(), "its code was run"


def a_run(folder: Path) -> Path:
    """A small run, written."""
    small = ["rounds=1", "data.clients=4", "data.clusters=2", "data.samples=10", "data.test_samples=20"]
    built = Config.load(None, [*small, "engine.name=serial", "method.k=2", "data.unseen=0"]).build()
    write_run(folder, built.config, built.simulation.population, built.simulation.run())
    return folder


# -- T20 ----------------------------------------------------------------------------------------------


def t20(tally: Tally, amount: int, folder: Path) -> None:
    """Datasets and models that are cut, flipped or emptied: an error that names the file, or the same samples."""
    draw, rng = random.Random(20), np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), (np.arange(40) % 10).astype(np.uint8)
    folder.mkdir(exist_ok=True)
    arrays = {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}
    np.savez_compressed(folder / "mnist.npz", **arrays)
    clients = folder / "clients"
    clients.mkdir()
    np.savez(clients / "a.npz", x=x, y=y)
    table = pa.table({"client": [0, 1] * 20, "label": y.astype(np.int64), "f": rng.normal(size=40)})
    pq.write_table(table, folder / "t.parquet")
    pa_csv.write_csv(table, folder / "t.csv")
    idx = struct.pack(">BBBBIII", 0, 0, 8, 3, 40, 28, 28) + x.tobytes()
    (folder / "x.gz").write_bytes(gzip.compress(idx, mtime=0))
    run = a_run(folder / "run")

    def source(name: str) -> Any:
        for cached in vars(sources).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        found = load_source(name, folder)
        return [found.x_train, found.y_train, found.x_test, found.y_test]

    kinds: dict[Path, Callable[[], Any]] = {
        folder / "mnist.npz": lambda: source("mnist"),
        clients / "a.npz": lambda: source(f"folder:{clients}"),
        folder / "t.parquet": lambda: source(f"table:{folder / 't.parquet'}"),
        folder / "x.gz": lambda: [readers.read_idx(folder / "x.gz")],
        run / "models" / "cluster-0.safetensors": lambda: [t for m in load_models(run).values() for t in m.values()],
        run / "models" / "manifest.json": lambda: [
            t for m in load_modules(run).values() for t in m.state_dict().values()
        ],
        folder / "t.csv": lambda: source(f"table:{folder / 't.csv'}"),
    }
    harmless = 0
    for j in range(amount):
        path = list(kinds)[j % len(kinds)]
        load, good = kinds[path], path.read_bytes()
        expected = [np.asarray(a).tobytes() for a in load()]
        how = ("cut", "flip", "empty", "zeros")[(j // len(kinds)) % 4]
        at = draw.randrange(len(good))
        bad = {"cut": good[:at], "empty": b"", "zeros": bytes(len(good))}.get(how)
        if bad is None:
            bad = good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :]
        with tally.case(f"{path.name}, {how} at {at}"):
            path.write_bytes(bad)
            try:
                found = [np.asarray(a).tobytes() for a in load()]
            except DataError as e:
                named = (path.name, "manifest") if path.suffix == ".json" else (path.name,)
                assert any(name in one_sentence(e) for name in named), f"the file is not named: {e}"
            else:
                # plain text has no checksum, and not every bit of an archive means something
                assert path.suffix in (".csv", ".json") or found == expected, "other samples were read"
                harmless += 1
        path.write_bytes(good)
    tally.figures = f"{tally.tried - harmless} refused by name; {harmless} of no consequence, or in plain text"


# -- T21 ----------------------------------------------------------------------------------------------


def t21(tally: Tally, amount: int, folder: Path) -> None:
    """Every key of the config, misspelt, of the wrong type, and (where it has one) out of its range."""
    words = {v: k for k, v in ALIASES.items()}
    every: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in Config.model_fields]
    every += [(f"{t}.{f.name}", {}) for t, cls in _TABLES.items() for f in dataclasses.fields(cls)]
    for name, cls in METHODS.items():
        own = [f.name for f in dataclasses.fields(cls) if f.name != "local"]  # type: ignore[arg-type]
        every += [(f"method.{words.get(n, n)}", {"method": {"name": name}}) for n in own]
    for name, entry in MODELS.items():
        every += [(f"model.{n}", {"model": {"name": name}}) for n in entry.params]
    cases = every if amount >= len(every) else random.Random(21).sample(every, amount)
    for key, base in cases:
        for what, path, value in (
            ("misspelt", key + "x" if len(key.split(".")[-1]) < 4 else key[:-1] + "q", 1),
            ("of the wrong type", key, [{"a": "b"}]),
        ):
            with tally.case(f"{key} {what}"):
                table = json.loads(json.dumps(base))
                *above, last = path.split(".")
                inner = table
                for part in above:
                    inner = inner.setdefault(part, {})
                inner[last] = value
                refuses(partial(Config.parse, table), "should", *(["did you mean"] if what == "misspelt" else []))
    for key, value in RANGES:
        with tally.case(f"{key}={value}"):
            refuses(lambda key=key, value=value: Config.load(None, [f"{key}={value}"]).build(), key)
    tally.figures = f"{len(cases)} keys"


RANGES: list[tuple[str, Any]] = [
    ("seed", -1),
    ("rounds", 0),
    ("participation", 0.0),
    ("participation", 1.5),
    ("eval_every", 0),
    ("data.clients", 0),
    ("data.clusters", 0),
    ("data.alpha", 0.0),
    ("data.samples", 0),
    ("data.drift_share", 0.0),
    ("local.lr", -0.1),
    ("local.batch", 0),
    ("local.epochs", 0),
    ("local.momentum", -1.0),
    ("method.k", 0),
    ("method.k", 25),
    ("engine.chunk", 0),
    ("engine.workers", 0),
    ("engine.clip_updates", 0.0),
    ("checkpoint.every", -1),
    ("checkpoint.keep", 1),
    ("attack.share", 1.0),
    ("attack.scale", 0.0),
    ("privacy.clip", 0.0),
    ("privacy.noise_multiplier", -1.0),
    ("privacy.delta", 1.0),
    ("rounds", "nan"),
    ("local.lr", "nan"),
    ("local.lr", "inf"),
]
