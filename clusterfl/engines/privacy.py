"""Clients that blur what they upload: the ``[privacy]`` table of a config.

A client cuts its update (what it sends minus what it was sent) to length ``clip`` and adds Gaussian noise of
``clip * noise_multiplier`` to every coordinate before anybody sees it. Each upload is charged to its client;
epsilon is that of the client with most uploads. The accounting is the cautious one: the server sees every
upload by itself and knows who was asked, so sampling amplifies nothing; two worlds are neighbours if one
client's whole data is replaced by any other. docs/reliability.md says what this does not cover.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Call, Chunk
from clusterfl.engines.base import BaseEngine, Spent
from clusterfl.engines.updates import Changing, norms, put, scaled, updates
from clusterfl.errors import ConfigError, DataError
from clusterfl.files import append, write_whole
from clusterfl.task import Task
from clusterfl.tree import Tree

log = logging.getLogger(__name__)

ACCOUNT = -1  # the id under which what was spent lies among what clients keep


@dataclass(frozen=True)
class PrivacyConfig:
    """The ``[privacy]`` table."""

    clip: float | None = None  # length to which clients cut their updates; unset: no privacy
    noise_multiplier: float = 1.0  # standard deviation of the noise on each coordinate, in clips
    delta: float = 1e-5  # the chance with which epsilon may fail

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise_multiplier", self.noise_multiplier)):
            if value is not None and not value > 0.0:
                raise ValueError(f"{name}={value} should be above 0")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta={self.delta} should be between 0 and 1")

    @property
    def on(self) -> bool:
        return self.clip is not None


def check_private(config: PrivacyConfig, task: Task) -> None:
    """Raises, before anything is started, where privacy was asked for and cannot be had."""
    if config.on and importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError(
            f"privacy.clip={config.clip} should be unset without dp-accounting; pip install 'clusterfl[dp]'"
        )
    if config.on and task.buffers:
        raise ConfigError(
            f"privacy.clip={config.clip} should be unset for a model with buffers (BatchNorm), which noise breaks"
        )


class Private(Changing):
    """An engine whose clients clip and blur their uploads, and a ledger of what that has cost."""

    def __init__(self, inner: BaseEngine, config: PrivacyConfig) -> None:
        check_private(config, inner.task)
        super().__init__(inner)
        self.config, self.ledger = config, Ledger()
        self.uploads = torch.zeros(len(inner.holds.train), dtype=torch.int64)

    def execute(self, call: Call) -> Iterator[Chunk]:
        charged = call.server or call.measure
        for chunk in super().execute(call):
            if not charged:  # before the first reply leaves its client
                self._charge(call, chunk)
                charged = True
            yield chunk

    def _charge(self, call: Call, chunk: Chunk) -> None:
        models = any(not isinstance(v, Tensor) for v in chunk.fields.values())
        rest = [f"{call.label}: {name}" for name, v in chunk.fields.items() if isinstance(v, Tensor)]
        new = [what for what in rest if what not in self.ledger.uncovered]
        if new:
            log.warning("epsilon is of models alone; these leave clients as they are: %s", ", ".join(new))
        if models or new:
            self.ledger.charge(call, call.ids.tolist() if models else [], rest)
        if models:
            self.uploads[call.ids] += 1

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        start, moves = updates(call, chunk)
        if not moves:
            return chunk
        assert self.config.clip is not None
        clip, ids = self.config.clip, call.ids[chunk.positions].tolist()
        cut = scaled(moves, (clip / norms(moves)).clamp(max=1.0))
        std = clip * self.config.noise_multiplier
        noisy = {
            at: t + std * torch.stack([_noise(call, i, at, t[0]) for i in ids]).to(t.dtype) for at, t in cut.items()
        }
        return put(chunk, start, noisy, torch.ones(len(ids), dtype=torch.bool))

    # -- what it costs -------------------------------------------------------------------------------

    def epsilon(self) -> float:
        """What the rounds so far have spent; the same for a run that was never stopped and one that was."""
        return epsilon(int(self.uploads.max()), self.config.noise_multiplier, self.config.delta)

    def spent(self) -> Spent:
        """What was ever charged, rounds that a crash took back included."""
        most = max(int(self.uploads.max()), self.ledger.most)
        found = epsilon(most, self.config.noise_multiplier, self.config.delta)
        return Spent(found, self.config.delta, most, tuple(sorted(self.ledger.uncovered)))

    def states(self) -> dict[int, Tree]:
        return {**super().states(), ACCOUNT: {"uploads": self.uploads.clone()}}

    def set_states(self, states: dict[int, Tree]) -> None:
        rest = dict(states)
        account = rest.pop(ACCOUNT, None)
        self.uploads = torch.zeros_like(self.uploads) if account is None else account["uploads"].clone()
        super().set_states(rest)


def _noise(call: Call, client: int, at: tuple[str, str], like: Tensor) -> Tensor:
    return keys.normal(keys.fold_in(call.client_key(client), "privacy", *at), *like.shape)


@lru_cache(maxsize=4096)
def epsilon(uploads: int, noise_multiplier: float, delta: float) -> float:
    """Epsilon of so many Gaussian releases, by privacy loss distributions; never below the true one."""
    if not uploads:
        return 0.0
    import dp_accounting
    from dp_accounting import pld

    # REPLACE_ONE counts twice the clip as an update's sensitivity; coarser steps cost below 1e-4 of epsilon
    step = 1e-3 * max(1.0, 2.0 * math.sqrt(uploads) / noise_multiplier)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, step)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), uploads)
    return float(accountant.get_epsilon(delta))


@dataclass
class Ledger:
    """Every charge, on the disk before what it pays for is released.

    A run that is taken up again repeats its last rounds with the same keys and releases the same bits: that
    is no second release, and the call is charged once. Another version of the program or of PyTorch might
    round differently, so there it is charged again.
    """

    path: Path | None = None  # None: only in memory
    charged: set[str] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    uncovered: set[str] = field(default_factory=set)

    @staticmethod
    def open(path: Path, run: str) -> Ledger:
        """The ledger of a run (named by a digest of its config and data); another run's is begun anew."""
        ledger = Ledger(path)
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if not lines or _read(path, lines[0], 1) != {"run": run}:
            write_whole(path, _line({"run": run}))
            return ledger
        for number, line in enumerate(lines[1:-1], start=2):
            ledger._note(_read(path, line, number))
        if lines[-1]:  # cut off while it was written: nothing was released for it
            write_whole(path, b"\n".join(lines[:-1]) + b"\n")
        return ledger

    @property
    def most(self) -> int:
        return max(self.counts.values(), default=0)

    def charge(self, call: Call, clients: list[int], uncovered: list[str]) -> None:
        entry = {"call": _name(call), "clients": clients, "uncovered": uncovered}
        if entry["call"] in self.charged:
            return
        if self.path is not None:
            append(self.path, _line(entry))
        self._note(entry)

    def _note(self, entry: dict[str, Any]) -> None:
        self.charged.add(entry["call"])
        self.uncovered.update(entry["uncovered"])
        for i in entry["clients"]:
            self.counts[i] = self.counts.get(i, 0) + 1


def _name(call: Call) -> str:
    from clusterfl import __version__

    what = f"{__version__} {torch.__version__} {call.label} {int(call.key)}"
    return hashlib.sha256(what.encode()).hexdigest()[:24]


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest()[:16].encode() + b" " + text + b"\n"


def _read(path: Path, line: bytes, number: int) -> dict[str, Any]:
    digest, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest()[:16].encode() != digest:
        raise DataError(
            f"{path} is damaged in line {number}, so that nobody knows what was spent; start in another folder"
        )
    found: dict[str, Any] = json.loads(text)
    return found
