"""Clients that blur what they upload: the ``[privacy]`` table of a config.

What a reply holds decides what is done to it (message.py). Models and gradients: the client cuts its update (what it
sends minus what it was sent) to length ``clip`` and adds Gaussian noise of ``clip * noise_multiplier`` to every
coordinate before anybody sees it. A statistic, or label information, with a bound: the same with its bound in place of
``clip``. Each of these is a release and is charged to its client. Everything else that leaves a client (weights,
cluster ids, losses, statistics without a bound) is named as not covered. Parameters that do not train are the same for
everybody: they are sent as they came. Where a client says which of several models it began from, the update is blurred
and the choice is not: epsilon then holds *given* that choice, and says so.

With ``unit = "sample"`` clients add the noise while they train (DP-SGD, parts/private.py); models leave as they are.

Epsilon is that of the client with most releases (accounting.py). docs/reliability.md says what this does not cover.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk, tensors_of
from clusterfl.cohort import METRICS, Spent
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers.accounting import Cost
from clusterfl.engines.wrappers.charges import Charge, Ledger, call_name
from clusterfl.engines.wrappers.coverage import Coverage, bounded, coverage
from clusterfl.engines.wrappers.updates import Changing, Parts, norms, origin_of, put, scaled, updates
from clusterfl.errors import ConfigError
from clusterfl.fields import one_of, option
from clusterfl.message import Fields, Model, Payload, Weight
from clusterfl.parts.gaussian import check_delta
from clusterfl.parts.local import SGD
from clusterfl.parts.private import PrivateSGD, rules_of
from clusterfl.task import Task
from clusterfl.tree import Tree, is_finite

log = logging.getLogger(__name__)

Unit = Literal["client", "sample"]
Sampling = Literal["known", "secret"]


@dataclass(frozen=True)
class PrivacyConfig:
    """The ``[privacy]`` table."""

    clip: float | None = option(None, "length to which clients cut their updates; unset: no privacy")
    noise_multiplier: float = option(1.0, "standard deviation of the noise on each coordinate, in clips")
    delta: float = option(1e-5, "the chance with which epsilon may fail")
    unit: Unit = option("client", "what is hidden: a client's whole data | sample: one sample, by noise in local steps")
    sampling: Sampling = option("known", "who is asked is known | secret, which amplifies; for methods of sums alone")
    publish_metrics: bool = option(
        True, "measure on clients' test data, and count labels for reports, which no noise covers"
    )

    def __post_init__(self) -> None:
        one_of(Unit, self, "unit")
        one_of(Sampling, self, "sampling")
        for name, value in (("clip", self.clip), ("noise_multiplier", self.noise_multiplier)):
            if value is not None and not 1e-6 <= value <= 1e6:
                raise ValueError(f"{name}={value} should be between 1e-06 and 1e+06")
        check_delta(self.delta)

    @property
    def on(self) -> bool:
        return self.clip is not None

    @property
    def measures(self) -> bool:
        """Whether anybody may look at clients' data to see how well models do on it."""
        return self.publish_metrics or not self.on


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
        self.own = Ledger()  # what the rounds that this run stands for have cost, repeated ones included
        self.measured = False
        self._round = (-1, 0)  # the last one's number, and how many clients its sample was drawn from

    @property
    def releases(self) -> Tensor:
        """So far, of each client."""
        return self.account()["releases"]

    def execute(self, call: Call) -> Iterator[Chunk]:
        self.measured |= call.measure
        charged = call.server or call.measure
        if self.config.unit == "sample" and not charged:
            call = replace(call, method=noisy(call.method, self.config))
        for chunk in super().execute(call):
            if not charged:  # before the first reply leaves its client
                self._charge(call, chunk.fields)
                charged = True
            if not (call.server or call.measure):
                self._note_divergence(call, chunk)
            yield chunk

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], **more: Any) -> list[Tree]:
        self.measured = True
        return super().score_rows(models, jobs, **more)

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        assert self.config.clip is not None
        chunk = with_fixed(self.task, call, chunk)
        if self.config.unit == "sample":
            return chunk
        ids = call.ids[chunk.positions].tolist()
        everybody = torch.ones(len(ids), dtype=torch.bool)
        start, moves = updates(self.task, call, chunk)
        if moves:
            chunk = put(chunk, start, self._blurred(call, ids, moves, self.config.clip), everybody)
        for name, bound in bounded(call.declared, chunk.fields).items():
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
        covers = coverage(self.task, call, fields)
        if self.config.unit == "sample":
            covers = self._in_samples(call, covers, fields)
        releases, uncovered = covers.releases, covers.uncovered
        new = [what for what in uncovered if what not in self.ledger.uncovered]
        if new:
            log.warning("epsilon does not cover these, which leave clients as they are: %s", ", ".join(new))
        ids = call.ids.tolist() if releases else []
        of = self._drawn_from(call)
        charge = Charge(call_name(call), ids, releases, uncovered, covers.given, call.round, of)
        if (releases or new) and charge.call not in self.ledger.charged:
            self.ledger.charge(charge)
        self.own.count(charge)

    def _note_divergence(self, call: Call, chunk: Chunk) -> None:
        """No noise hides that an update is not finite."""
        seen = [f"{call.label}: that {name} is not finite" for name, value in chunk.fields.items() if not finite(value)]
        new = [what for what in seen if what not in self.ledger.uncovered]
        if new:
            log.warning("epsilon does not cover what some replies tell as they are: %s", ", ".join(new))
            self.ledger.charge(Charge(call_name(call), [], 0, new, round=call.round))

    def _in_samples(self, call: Call, covers: Coverage, fields: Fields) -> Coverage:
        """The same for one sample: an epoch reads it once. What clients do not make in local steps is not covered, and
        the models may have begun where that says."""
        models = [n for n in fields if isinstance(call.declared.get(n), Model)]
        rule = next((r for r in rules_of(call.method) if isinstance(r, PrivateSGD)), None)
        bare = [n for n in fields if n not in models or rule is None]
        uncovered = list(dict.fromkeys([*covers.uncovered, *(f"{call.label}: {n}" for n in bare)]))
        if rule is None or not models or not covers.releases:
            return Coverage(0, uncovered, [])
        epochs = max(rule.epochs_of(int(n)) for n in self.population.train.sizes[call.ids])
        told = [n for n in bare if not isinstance(call.declared.get(n), Weight)]
        return Coverage(epochs, uncovered, [f"{call.label}: {n}" for n in told])

    def _drawn_from(self, call: Call) -> int:
        """How many clients a secret sample was drawn from; 0 where everybody was asked, or newcomers. The first call of
        a round decides: who is left for a second one was not drawn."""
        if self.config.sampling == "known":
            return 0
        could = int((self.population.train.sizes[: self.clients] > 0).sum())
        drawn = len(call.ids) < could and int(call.ids.max()) < self.clients
        if self._round[0] != call.round or not drawn:
            self._round = (call.round, could if drawn else 0)
        return self._round[1]

    def _epsilon(self, cost: Cost) -> float:
        config = self.config
        return cost.epsilon(config.noise_multiplier, config.delta, secret=config.sampling == "secret")

    def epsilon(self) -> float:
        """What the rounds so far have spent; the same for a run that was never stopped and one that was."""
        return self._epsilon(self.own.cost)

    def spent(self) -> Spent:
        worst = max((self.own, self.ledger), key=lambda ledger: self._epsilon(ledger.cost))
        return Spent(
            self._epsilon(worst.cost),
            self.config.delta,
            max(self.own.most, self.ledger.most),
            tuple(sorted(self.ledger.uncovered | ({METRICS} if self.measured else set()))),
            tuple(sorted(self.ledger.given)),
            self.config.unit,
            self.config.sampling,
        )

    def account(self) -> Tree:
        return self.own.account(len(self.population.train))

    def set_account(self, account: Tree | Tensor | None) -> None:
        self.own = Ledger.of_account(account)


class Charged(Private):
    """Only the ledger: clients on devices of their own have clipped and blurred before anything left them."""

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        return chunk


def with_fixed(task: Task, call: Call, chunk: Chunk) -> Chunk:
    """Parameters that do not train, as they were sent: a client could tell something by them."""
    fields: Fields = dict(chunk.fields)
    for name, value in chunk.fields.items():
        kind = call.declared.get(name)
        if isinstance(kind, Model) and isinstance(value, dict) and any(n in value for n in task.fixed):
            origin = origin_of(call, chunk, kind)
            fields[name] = {n: origin[n].clone() if n in task.fixed else t for n, t in value.items()}
    return Chunk(chunk.positions, fields)


def finite(value: Payload) -> bool:
    """Whether all numbers of a field are."""
    return is_finite({"": value} if isinstance(value, Tensor) else value)


# -- noise in local steps ------------------------------------------------------------------------------


def noisy(part: Any, config: PrivacyConfig) -> Any:
    """The same method, whose local rules cut and blur every sample's gradient."""
    assert config.clip is not None
    if isinstance(part, SGD):
        return PrivateSGD.of(part, config.clip, config.noise_multiplier)
    changed = {}
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if f.init and dataclasses.is_dataclass(value) and not isinstance(value, type) and any(rules_of(value)):
            changed[f.name] = noisy(value, config)
    return replace(part, **changed) if changed else part


def _noise(call: Call, client: int, at: tuple[str, str], like: Tensor) -> Tensor:
    return keys.normal(keys.fold_in(call.client_key(client), "privacy", *at), *like.shape)
