"""Clients that blur what they upload: the ``[privacy]`` table of a config.

What a reply holds decides what is done to it (message.py). Models and gradients: the client cuts its update (what it
sends minus what it was sent) to length ``clip`` and adds Gaussian noise of ``clip * noise_multiplier`` to every
coordinate before anybody sees it. A statistic, or label information, with a bound: the same with its bound in place of
``clip``. Each of these is a release and is charged to its client. Everything else that leaves a client (weights,
cluster ids, losses, statistics without a bound) is named as not covered.

Epsilon is that of the client with most releases. The accounting is the cautious one: the server sees every upload by
itself and knows who was asked, so sampling amplifies nothing; two worlds are neighbours if one client's whole data is
replaced by any other. docs/reliability.md says what this does not cover.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.cohort import Spent
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers.updates import Changing, Parts, norms, put, scaled, updates
from clusterfl.errors import ConfigError
from clusterfl.fields import option
from clusterfl.message import Call, Chunk, Fields, Gradient, Labels, Model, Statistic, tensors_of
from clusterfl.task import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrivacyConfig:
    """The ``[privacy]`` table."""

    clip: float | None = option(None, "length to which clients cut their updates; unset: no privacy")
    noise_multiplier: float = option(1.0, "standard deviation of the noise on each coordinate, in clips")
    delta: float = option(1e-5, "the chance with which epsilon may fail")

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


@dataclass(frozen=True)
class Charge:
    """What one call costs its clients, and what of its replies that does not cover."""

    call: str  # the same for a call that is repeated after a crash with the same keys
    clients: list[int]
    releases: int  # Gaussian releases of each client
    uncovered: list[str]


@dataclass
class Ledger:
    """Every charge. A call that is repeated releases the same bits and is charged once."""

    charged: set[str] = field(default_factory=set)
    releases: dict[int, int] = field(default_factory=dict)  # by client
    uncovered: set[str] = field(default_factory=set)

    @property
    def most(self) -> int:
        return max(self.releases.values(), default=0)

    def charge(self, charge: Charge) -> None:
        """Notes a charge; whoever stores ledgers does so before this returns."""
        self.charged.add(charge.call)
        self.uncovered.update(charge.uncovered)
        for i in charge.clients:
            self.releases[i] = self.releases.get(i, 0) + charge.releases


class Private(Changing):
    """An engine whose clients clip and blur their uploads, and a ledger of what that has cost."""

    def __init__(self, inner: BaseEngine, config: PrivacyConfig) -> None:
        check_private(config, inner.task)
        super().__init__(inner)
        self.config, self.ledger = config, Ledger()
        self.releases = torch.zeros(len(inner.population.train), dtype=torch.int64)

    def execute(self, call: Call) -> Iterator[Chunk]:
        charged = call.server or call.measure
        for chunk in super().execute(call):
            if not charged:  # before the first reply leaves its client
                self._charge(call, chunk.fields)
                charged = True
            yield chunk

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        assert self.config.clip is not None
        ids = call.ids[chunk.positions].tolist()
        everybody = torch.ones(len(ids), dtype=torch.bool)
        start, moves = updates(self.task, call, chunk)
        if moves:
            chunk = put(chunk, start, self._blurred(call, ids, moves, self.config.clip), everybody)
        for name, bound in bounded(call, chunk.fields).items():
            parts = {(name, inner): t for _, inner, t in tensors_of({name: chunk.fields[name]})}
            blurred = self._blurred(call, ids, parts, bound)
            value = chunk.fields[name]
            new = blurred[name, ""] if isinstance(value, Tensor) else {n: blurred[name, n] for n in value}
            chunk = Chunk(chunk.positions, {**chunk.fields, name: new})
        return chunk

    def _blurred(self, call: Call, ids: list[int], moves: Parts, bound: float) -> Parts:
        """Each client's values, cut to length ``bound`` and with noise in proportion to it."""
        cut = scaled(moves, (bound / norms(moves)).clamp(max=1.0))
        std = bound * self.config.noise_multiplier
        return {
            at: t + std * torch.stack([_noise(call, i, at, t[0]) for i in ids]).to(t.dtype) for at, t in cut.items()
        }

    # -- what it costs -------------------------------------------------------------------------------

    def _charge(self, call: Call, fields: Fields) -> None:
        releases, uncovered = coverage(self.task, call, fields)
        new = [what for what in uncovered if what not in self.ledger.uncovered]
        if new:
            log.warning("epsilon does not cover these, which leave clients as they are: %s", ", ".join(new))
        charge = Charge(call_name(call), call.ids.tolist() if releases else [], releases, uncovered)
        if (releases or new) and charge.call not in self.ledger.charged:
            self.ledger.charge(charge)
        self.releases[call.ids] += releases

    def epsilon(self) -> float:
        """What the rounds so far have spent; the same for a run that was never stopped and one that was."""
        return epsilon(int(self.releases.max()), self.config.noise_multiplier, self.config.delta)

    def spent(self) -> Spent:
        most = max(int(self.releases.max()), self.ledger.most)
        value = epsilon(most, self.config.noise_multiplier, self.config.delta)
        return Spent(value, self.config.delta, most, tuple(sorted(self.ledger.uncovered)))

    def account(self) -> Tensor:
        return self.releases.clone()

    def set_account(self, releases: Tensor | None) -> None:
        self.releases = torch.zeros_like(self.releases) if releases is None else releases.clone()


def bounded(call: Call, fields: Fields) -> dict[str, float]:
    """The fields of a reply that have a bound of their own."""
    kinds = {name: call.declared.get(name) for name in fields}
    return {n: k.bound for n, k in kinds.items() if isinstance(k, Statistic | Labels) and k.bound is not None}


def coverage(task: Task, call: Call, fields: Fields) -> tuple[int, list[str]]:
    """How many Gaussian releases such a reply is, and what of it no noise covers, as "procedure: field"."""
    covered = bounded(call, fields)
    updated, uncovered = False, []
    for place, name, t in tensors_of(fields):
        if place in covered:
            continue
        if not isinstance(call.declared.get(place), Model | Gradient):
            uncovered.append(f"{call.label}: {place}")
        elif name in task.fixed:
            continue  # the same for everybody: it tells nothing
        elif t.is_floating_point():
            updated = True
        else:
            uncovered.append(f"{call.label}: {place}.{name}")
    return updated + len(covered), list(dict.fromkeys(uncovered))


def _noise(call: Call, client: int, at: tuple[str, str], like: Tensor) -> Tensor:
    return keys.normal(keys.fold_in(call.client_key(client), "privacy", *at), *like.shape)


def call_name(call: Call) -> str:
    """The same for the same call of the same program: another version might round differently."""
    from clusterfl import __version__

    what = f"{__version__} {torch.__version__} {call.label} {int(call.key)}"
    return hashlib.sha256(what.encode()).hexdigest()[:24]


@lru_cache(maxsize=4096)
def epsilon(releases: int, noise_multiplier: float, delta: float) -> float:
    """Epsilon of so many Gaussian releases, by privacy loss distributions; never below the true one."""
    if not releases:
        return 0.0
    import dp_accounting
    from dp_accounting import pld

    # REPLACE_ONE counts twice the clip as an update's sensitivity; coarser steps cost below 1e-4 of epsilon
    step = 1e-3 * max(1.0, 2.0 * math.sqrt(releases) / noise_multiplier)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, step)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), releases)
    return float(accountant.get_epsilon(delta))
