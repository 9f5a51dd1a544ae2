"""Files that are damaged or hostile."""

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

import clusterfl
from clusterfl.config import Config
from clusterfl.data import registry
from clusterfl.data.formats import read_cifar, read_idx
from clusterfl.data.registry import load_source
from clusterfl.data.user_data import load as load_user_data
from clusterfl.engines import Serial, codec
from clusterfl.errors import DataError
from clusterfl.loop import Simulation
from clusterfl.record import Schedule
from clusterfl.runs.checkpoint import CheckpointError, Snapshot, read_snapshot
from clusterfl.runs.model_files import load_models, load_modules
from clusterfl.testing.small import small_population
from tests.methods.small import small_method

from .common import Tally, saver, task_for
from .refusals import one_sentence, refuses

# -- damaged checkpoints -----------------------------------------------------------------------------


def simulation() -> Simulation:
    population = small_population()
    return Simulation(small_method("fedper"), population, Serial(task_for(population), population), Schedule(3))


def damaged_checkpoint(tally: Tally, amount: int, folder: Path) -> None:
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


# -- hostile files -----------------------------------------------------------------------------------


def bomb(path: Path) -> Any:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (path,)

    return Bomb()


def hostile_files(tally: Tally, amount: int, folder: Path) -> None:
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
        load_user_data(f"folder:{place}", folder)

    def cifar() -> None:
        path = folder / "data_batch_1"
        path.write_bytes(pickle.dumps({b"data": bomb(mark), b"labels": [0]}, protocol=2))
        read_cifar(path, b"labels")

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
    clusterfl.run(Config.load(None, [*small, "engine.name=serial", "data.unseen=0"]), out=folder)
    return folder


# -- damaged files -----------------------------------------------------------------------------------


def damaged_files(tally: Tally, amount: int, folder: Path) -> None:
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
        for cached in vars(registry).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        found = load_source(name, folder)
        return [found.x_train, found.y_train, found.x_test, found.y_test]

    kinds: dict[Path, Callable[[], Any]] = {
        folder / "mnist.npz": lambda: source("mnist"),
        clients / "a.npz": lambda: source(f"folder:{clients}"),
        folder / "t.parquet": lambda: source(f"table:{folder / 't.parquet'}"),
        folder / "x.gz": lambda: [read_idx(folder / "x.gz")],
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
