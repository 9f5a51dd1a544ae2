"""Who is there: nodes say what they hold, classes and columns are agreed by name, and a population without data stands
for them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.data.user_tables import feature_names
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
    found |= {n: _sound(a, reading) for n, a in answers.items() if isinstance(a, Introduction)}
    for name, said in found.items():
        if said.declined:
            log.warning("node %r takes no part: %s", name, said.declined)
    there = len(taking(found))
    least = min(terms.least, len(names))
    if there < least:
        reasons = "; ".join(
            [*(f"{n}: {r}" for n, r in failures.items()), *(f"{n}: {i.declined}" for n, i in found.items())]
        )
        raise ClusterflError(f"{least} nodes should take part, but {there} do ({reasons})")
    return {n: found[n] for n in names if n in found}


def _sound(said: Introduction, reading: Reading) -> Introduction:
    """What a node says where it can be: sizes are sizes, and each column of words has its words."""
    wanted = len(reading.categorical) if said.columns else 0
    if len(said.words) == wanted and min(said.train, said.test, *said.input_shape, *said.target_shape) >= 0:
        return said
    return replace(said, declined="what it says of its data cannot be")


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    def walk(value: Any) -> Any:
        return tuple(map(walk, value)) if isinstance(value, list) else value

    return {n: walk(v) for n, v in table.items()}


def agreed_classes(
    federation: Federation, introductions: dict[str, Introduction], before: tuple[str, ...]
) -> tuple[str, ...]:
    """The classes by name: those of federation.toml, of the run that goes on, or all that nodes name.

    A node with another class is refused by name: it is left out of the run.
    """
    agreed = federation.classes or before
    if not agreed:
        return in_order({c for said in taking(introductions).values() for c in said.classes})
    for name, said in taking(introductions).items():
        _refuse_unknown(introductions, name, "classes", said.classes, agreed)
    return agreed


def agreed_reading(
    federation: Federation, introductions: dict[str, Introduction], reading: Reading, before: Reading
) -> Reading:
    """How all nodes read their tables: the same columns in the same order, and the words of each column of words, those
    of federation.toml, of the run that goes on, or all that nodes name.

    A node with another word is refused by name.
    """
    tables = {name: said for name, said in taking(introductions).items() if said.columns}
    columns = before.features or next((said.columns for said in tables.values()), ())
    for name, said in tables.items():
        if set(said.columns) != set(columns):
            lacks, more = sorted(set(columns) - set(said.columns)), sorted(set(said.columns) - set(columns))
            raise ClusterflError(
                f"tables should have the same columns on all nodes, but node {name!r} lacks {lacks} and has {more} "
                "beside; data.feature_columns says which ones count"
            )
    words = tuple(
        federation.categories.get(column)
        or (before.words[j] if before.words else tuple(sorted({w for said in tables.values() for w in said.words[j]})))
        for j, column in enumerate(reading.categorical)
        if tables or before.words
    )
    shape = (len(feature_names(columns, dict(zip(reading.categorical, words, strict=False)))),)
    for name, said in tables.items():
        introductions[name] = replace(said, input_shape=shape)
        for column, mine, agreed in zip(reading.categorical, said.words, words, strict=True):
            _refuse_unknown(introductions, name, f"words in column {column!r}", mine, agreed)
    return replace(reading, features=columns or reading.features, words=words)


def taking(introductions: Mapping[str, Introduction]) -> dict[str, Introduction]:
    """The nodes that take part."""
    return {name: said for name, said in introductions.items() if not said.declined}


def _refuse_unknown(
    introductions: dict[str, Introduction], name: str, what: str, mine: Collection[str], agreed: Collection[str]
) -> None:
    unknown = sorted(set(mine) - set(agreed))
    if unknown:
        log.warning("node %r is refused: its %s %s are not among those agreed on", name, what, unknown)
        introductions[name] = replace(introductions[name], train=0, test=0, declined=f"unknown {what} {unknown}")


def check_shapes(introductions: Mapping[str, Introduction]) -> None:
    """Raises where nobody is left to take part, or samples differ in shape."""
    there = taking(introductions)
    if not there:
        reasons = "; ".join(f"{n}: {said.declined}" for n, said in introductions.items())
        raise ClusterflError(f"some node should take part, but none does ({reasons})")
    for part, what in (("input_shape", "samples"), ("target_shape", "targets")):
        if len({getattr(said, part) for said in there.values()}) > 1:
            differ = "; ".join(f"{n}: {list(getattr(said, part))}" for n, said in there.items())
            raise ClusterflError(f"{what} should have one shape on all nodes, but have: {differ}")


@dataclass(frozen=True)
class Nodes(Population):
    """Clients whose data nobody here has seen; they are the same run's as long as names and classes are the same."""

    elsewhere: ClassVar[bool] = True

    @cached_property
    def digest(self) -> str:
        columns = () if self.feature_names is None else (self.feature_names,)
        return hashlib.sha256(repr((self.names, self.classes, self.input_shape, *columns)).encode()).hexdigest()


def stand_in(
    names: tuple[str, ...], introductions: dict[str, Introduction], classes: tuple[str, ...], reading: Reading
) -> Population:
    """A population of the right sizes that holds no data: one blank sample stands for all of everybody's."""
    there = taking(introductions).values()
    one, tables = next(iter(there)), any(said.columns for said in there)
    categories = dict(zip(reading.categorical, reading.words, strict=False))
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
        shards(train),
        shards(test),
        len(names),
        len(classes),
        name=about,
        names=names,
        class_names=classes or None,
        feature_names=feature_names(reading.features or (), categories) if tables else None,
        categories=categories or None,
    )
