"""Who is there: nodes say what they hold, classes are agreed by name, and a population without data stands for them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import codec
from clusterfl.engines.flower.engine import Exchange
from clusterfl.engines.flower.messages import Hello, Introduction, Reading
from clusterfl.errors import ClusterflError
from clusterfl.federate.data import in_order
from clusterfl.federate.folder import Federation

log = logging.getLogger(__name__)


def meet(
    names: tuple[str, ...],
    exchange: Exchange,
    reading: Reading,
    known: Mapping[str, Any],
    revoked: Collection[str] = (),
) -> dict[str, Introduction]:
    """What each node says it holds. One that is away keeps what it said when the run began; revoked ones are not
    waited for."""
    terms = exchange.terms
    welcome = set(names).difference(revoked)
    exchange.wait_for(welcome, len(welcome), exchange.clock() + terms.wait)
    tokens = {name: j for j, name in enumerate(names)}
    letters = {name: codec.pack(Hello(tokens[name], name, reading)) for name in names}
    answers, failures = exchange.run("hello", "query", letters, tokens)
    found = {n: Introduction(**_tuples(i)) for n, i in known.get("introductions", {}).items()}
    found |= {n: a for n, a in answers.items() if isinstance(a, Introduction)}
    for name, said in found.items():
        if said.declined:
            log.warning("node %r takes no part: %s", name, said.declined)
    taking = [n for n, said in found.items() if not said.declined]
    least = min(terms.least, len(names))
    if len(taking) < least:
        reasons = "; ".join(
            [*(f"{n}: {r}" for n, r in failures.items()), *(f"{n}: {i.declined}" for n, i in found.items())]
        )
        raise ClusterflError(f"{least} nodes should take part, but {len(taking)} do ({reasons})")
    for part in ("input_shape", "target_shape"):
        if len({getattr(found[n], part) for n in taking}) > 1:
            differ = "; ".join(f"{n}: {list(getattr(found[n], part))}" for n in taking)
            what = "samples" if part == "input_shape" else "targets"
            raise ClusterflError(f"{what} should have one shape on all nodes, but have: {differ}")
    return {n: found[n] for n in names if n in found}


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {n: tuple(v) if isinstance(v, list) else v for n, v in table.items()}


def agreed_classes(
    federation: Federation, introductions: dict[str, Introduction], before: tuple[str, ...]
) -> tuple[str, ...]:
    """The classes by name: those of federation.toml, of the run that goes on, or all that nodes name.

    A node with another class is refused by name: it is left out of the run.
    """
    agreed = federation.classes or before
    if not agreed:
        return in_order({c for said in introductions.values() if not said.declined for c in said.classes})
    for name, said in list(introductions.items()):
        unknown = sorted(set(said.classes) - set(agreed))
        if unknown and not said.declined:
            log.warning("node %r is refused: its classes %s are not among those agreed on", name, unknown)
            introductions[name] = Introduction(
                said.token, 0, 0, said.input_shape, said.classes, f"unknown classes {unknown}"
            )
    return agreed


@dataclass(frozen=True)
class Nodes(Population):
    """Clients whose data nobody here has seen; they are the same run's as long as names and classes are the same."""

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.names, self.classes, self.input_shape)).encode()).hexdigest()


def stand_in(names: tuple[str, ...], introductions: dict[str, Introduction], classes: tuple[str, ...]) -> Population:
    """A population of the right sizes that holds no data: one blank sample stands for all of everybody's."""
    one = next(said for said in introductions.values() if not said.declined)
    label = torch.zeros(1, dtype=torch.int64) if classes else torch.zeros(1, *one.target_shape)

    def shards(sizes: list[int]) -> Shards:
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        return Shards(
            torch.zeros(1, *one.input_shape), label, torch.zeros(int(offsets[-1]), dtype=torch.int64), offsets
        )

    said = [introductions.get(name) for name in names]
    train, test = ([0 if s is None or s.declined else getattr(s, part) for s in said] for part in ("train", "test"))
    about = f"{len(names)} nodes' own data"
    return Nodes(
        shards(train), shards(test), len(names), len(classes), name=about, names=names, class_names=classes or None
    )
