"""Replies that are missing, wrong, damaged, repeated, late or out of order."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk, take_rows
from clusterfl.engines import Flaky, Serial, Wire, codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.chunks import in_order
from clusterfl.engines.wire import Reply
from clusterfl.engines.wrappers import Wrapper
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.errors import NoReplies
from clusterfl.loop import Simulation
from clusterfl.message import Fields
from clusterfl.methods import IFCA, FedAvg
from clusterfl.parts.aggregate import Krum, Mean, Median, MultiKrum, Rule, Trimmed
from clusterfl.record import Schedule
from clusterfl.testing.compare import assert_equal, tensors
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from tests.methods.small import LOCAL, small_method

from .common import Tally, task_for

BAD = 3  # the client that answers badly
RULES: tuple[Rule, ...] = (Mean(), Median(), Trimmed(), Krum(), MultiKrum())
POPULATION = small_population()


def guarded(inner: BaseEngine) -> Guard:
    sizes = POPULATION.train.sizes
    return Guard(inner, sample=POPULATION.train.x[0], most=float(sizes.max()))


class Losing(Wrapper):
    """One client's models never arrive."""

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            rest = (call.ids[chunk.positions] != BAD).nonzero().flatten()
            if call.server or "theta" not in chunk.fields:
                yield chunk
            elif len(rest):
                yield Chunk(chunk.positions[rest], {n: take_rows(v, rest) for n, v in chunk.fields.items()})


def without(method: Any, rounds: int = 1) -> Any:
    """The state that the others reach by themselves."""
    return play(method, Losing(Serial(small_task(), POPULATION)), rounds)


def assert_finite(state: Any) -> None:
    for path, t in tensors(state):
        assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{path} is not finite"


# -- missing ----------------------------------------------------------------------------------------


def cluster_vanishes(tally: Tally, amount: int, folder: Path) -> None:
    """All clients of one cluster vanish: its model stays, is called stale, and the others go on."""
    names = ("ifca", "fesem", "hypcluster", "fedds", "robust-tkm")
    for j in range(amount):
        name, population = names[j % len(names)], small_population(seed=j // len(names))
        with tally.case(f"{name}, population {j // len(names)}"):
            engine = Flaky(Serial(task_for(population), population), 0.0)
            sim = Simulation(small_method(name), population, engine, Schedule(rounds=5, seed=j))
            sim.start(), sim.step(), sim.step()
            before = sim.method.serve(sim.state, sim.ids)
            assert before.index.unique().numel() == 2, "the two groups were not found"
            lost = int(before.index[0])
            engine.gone = frozenset(sim.ids[before.index == lost].tolist())
            record = sim.step()
            after = sim.method.serve(sim.state, sim.ids)
            assert all(torch.equal(t[lost], after.models[n][lost]) for n, t in before.models.items()), "its model moved"
            assert any(not torch.equal(t[1 - lost], after.models[n][1 - lost]) for n, t in before.models.items())
            assert torch.equal(before.index, after.index) and record.logged["stale"] == 1.0


# -- bad content ------------------------------------------------------------------------------------


class Poisoned(Wrapper):
    """One client's model is changed before the guard sees it."""

    def __init__(self, inner: BaseEngine, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(inner)
        self.change = change

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            fields: Fields = dict(chunk.fields)
            theta = fields.get("theta")
            mine = (call.ids[chunk.positions] == BAD).nonzero().flatten().tolist()
            if isinstance(theta, dict) and not call.server and mine:
                name = "0.weight"
                t = theta[name].clone()
                t[mine[0]] = self.change(t[mine[0]])
                fields["theta"] = {**theta, name: t}
            yield Chunk(chunk.positions, fields)


def _one(value: float) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        out = t.clone()
        out.view(-1)[7] = value
        return out

    return change


POISONS: dict[str, Callable[[Tensor], Tensor]] = {
    "all NaN": lambda t: t * torch.nan,
    "all Inf": lambda t: torch.full_like(t, torch.inf),
    "one NaN": _one(torch.nan),
}


def not_finite(tally: Tally, amount: int, folder: Path) -> None:
    """NaN, Inf or one NaN in a model, under every rule of aggregation."""
    cases = [(how, rule, k) for rule in RULES for how in POISONS for k in (1, 2)][:amount]
    for how, rule, k in cases:
        method: Any = FedAvg(local=LOCAL, aggregate=rule) if k == 1 else IFCA(k=2, local=LOCAL, aggregate=rule)
        with tally.case(f"{how}, {rule.name}, {method.name}"):
            guard = guarded(Poisoned(Serial(small_task(), POPULATION), POISONS[how]))
            state = play(method, guard, rounds=1)
            assert_finite(state)
            assert guard.rejected[BAD] >= 1 and set(guard.rejected) == {BAD}
            assert_equal(state, without(method), "the others by themselves")


def craft(token: int, fields: dict[str, Any]) -> bytes:
    """A reply as a stranger could send it: well-formed, but with whatever fields he likes."""
    packed: dict[str, Tensor] = {}

    def walk(v: Any) -> Any:
        if isinstance(v, Tensor):
            packed[f"t{len(packed)}"] = v.contiguous()
            return {"$t": f"t{len(packed) - 1}"}
        if isinstance(v, dict):
            return {"$d": [[k, walk(x)] for k, x in v.items()]}
        return v

    structure = {"$c": Reply.tag(), "f": {"token": token, "fields": walk(fields)}}
    head = json.dumps(structure).encode()
    body = struct.pack("<Q", len(head)) + head + save_tensors(packed)
    return sha256(body).digest() + body


class Forging:
    """A network on which one client's reply is replaced by a forged one."""

    def __init__(self, forge: Callable[[dict[str, Any]], Any]) -> None:
        self.forge, self.turn = forge, 0

    def __call__(self, message: bytes) -> list[bytes]:
        self.turn += 1
        if (self.turn - 1) % CLIENTS != BAD:
            return [message]
        reply: Reply = codec.unpack(message)
        return [craft(reply.token, self.forge(dict(reply.fields)))]


def with_weight(fields: dict[str, Any], change: Callable[[Tensor], Any]) -> dict[str, Any]:
    return {**fields, "theta": {**fields["theta"], "0.weight": change(fields["theta"]["0.weight"])}}


def without_bias(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "theta": {n: t for n, t in fields["theta"].items() if n != "0.bias"}}


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "wrong shape": lambda f: with_weight(f, lambda w: w[:, :2]),
    "broadcastable shape": lambda f: with_weight(f, lambda w: w[:1]),
    "float64": lambda f: with_weight(f, lambda w: w.double()),
    "complex": lambda f: with_weight(f, lambda w: w.to(torch.complex64)),
    "integers": lambda f: with_weight(f, lambda w: w.long()),
    "missing key": without_bias,
    "extra key": lambda f: {**f, "surprise": torch.zeros(2)},
    "text for a tensor": lambda f: with_weight(f, lambda _: "zeros"),
}


def forged(method: Any, forge: Callable[[dict[str, Any]], Any]) -> None:
    wire = Wire(small_task(), POPULATION, Forging(forge))
    guard = guarded(wire)
    state = play(method, guard, rounds=1)
    assert guard.rejections() == 1 and set(guard.rejected) <= {BAD}
    assert_equal(state, without(method), "the others by themselves")


def wrong_shape(tally: Tally, amount: int, folder: Path) -> None:
    """Wrong, broadcastable or missing shapes, other dtypes, missing and extra keys, over the wire."""
    for how, forge in list(FORGERIES.items())[:amount]:
        with tally.case(how):
            forged(FedAvg(local=LOCAL), forge)


def wrong_weight(tally: Tally, amount: int, folder: Path) -> None:
    """A client that says it has 0, -5, NaN, 1e12 or "many" samples."""
    claims: list[Any] = [0.0, -5.0, float("nan"), 1e12, "many"]
    for claim in claims[:amount]:
        with tally.case(f"n={claim}"):
            value = claim if isinstance(claim, str) else torch.tensor(claim)
            forged(FedAvg(local=LOCAL), lambda f, value=value: {**f, "n": value})


# -- what the network does --------------------------------------------------------------------------


def damaged_messages(tally: Tally, amount: int, folder: Path) -> None:
    """Messages that are cut short or have a bit flipped: each is dropped, and the whole ones count."""
    draw = random.Random(10)
    damaged: set[int] = set()
    turn = 0

    def transport(message: bytes) -> list[bytes]:
        nonlocal turn
        turn += 1
        if len(damaged) >= amount or draw.random() < 0.2:
            return [message]
        damaged.add(turn - 1)
        at = draw.randrange(len(message))
        if draw.random() < 0.5:
            return [message[:at]]
        return [message[:at] + bytes([message[at] ^ (1 << draw.randrange(8))]) + message[at + 1 :]]

    wire = Wire(small_task(), POPULATION, transport)
    theta = wire.task.init(keys.key(0))
    procedure = FedAvg(local=dataclasses.replace(LOCAL, epochs=None, steps=1)).train
    while len(damaged) < amount:
        first, before = turn, wire.dropped
        try:
            got = wire.cohort(torch.arange(CLIENTS), keys.fold_in(keys.key(1), turn)).run(procedure, {"theta": theta})
            ids = got.ids.tolist()
        except NoReplies:
            ids = []
        bad = [i for i in range(CLIENTS) if first + i in damaged]
        for i in bad:
            with tally.case(f"message {first + i}"):
                assert i not in ids, "a damaged message was taken for a reply"
        assert ids == [i for i in range(CLIENTS) if i not in bad], "a whole message was lost"
        assert wire.dropped - before == len(bad), "a damaged message was not counted"


def repeated_messages(tally: Tally, amount: int, folder: Path) -> None:
    """Replies that come twice count once; late ones and those of the round before never count."""
    rounds = -(-amount // CLIENTS)
    method = FedAvg(local=LOCAL)
    clean = play(method, Wire(small_task(), POPULATION), rounds)
    old: list[bytes] = []

    def twice(message: bytes) -> list[bytes]:
        return [message, message]

    def late(message: bytes) -> list[bytes]:
        """The reply of the client before arrives once more, in front."""
        old.append(message)
        return [old[-2], message] if len(old) > 1 else [message]

    def previous(message: bytes) -> list[bytes]:
        """This client's reply of the round before arrives in front of the new one."""
        old.append(message)
        return [old[-1 - CLIENTS], message] if len(old) > CLIENTS else [message]

    for what, transport, free in (("twice", twice, 0), ("late", late, 1), ("previous round", previous, CLIENTS)):
        old.clear()
        wire = Wire(small_task(), POPULATION, transport)
        state = play(method, wire, rounds + (what == "previous round"))
        whole = clean if what != "previous round" else play(method, Wire(small_task(), POPULATION), rounds + 1)
        sent = CLIENTS * (rounds + (what == "previous round")) - free
        for _ in range(sent):
            with tally.case(what):
                assert wire.dropped == sent, f"{wire.dropped} of {sent} were dropped"
                assert_equal(state, whole, "without the extra messages")


class Shuffled(Wrapper):
    """Replies arrive one by one in a random order, as from a network, and are put in order again."""

    def __init__(self, inner: BaseEngine, draw: random.Random) -> None:
        super().__init__(inner)
        self.draw = draw

    def execute(self, call: Call) -> Iterator[Chunk]:
        arrived: list[Chunk] = []
        for chunk in self.inner.execute(call):
            for j in range(len(chunk.positions)):
                one = torch.tensor([j])
                fields = {n: take_rows(v, one) for n, v in chunk.fields.items()}
                arrived.append(Chunk(chunk.positions[one], fields))
        self.draw.shuffle(arrived)
        yield from in_order(arrived)


def other_order(tally: Tally, amount: int, folder: Path) -> None:
    """Replies in another order: the same bits."""
    draw = random.Random(13)
    names = ("fedavg", "ifca", "fesem", "fcca", "cfl")
    states = {name: play(small_method(name), Serial(task_for(POPULATION), POPULATION)) for name in names}
    for j in range(amount):
        name = names[j % len(names)]
        with tally.case(f"{name}, order {j}"):
            engine = Shuffled(Serial(task_for(POPULATION), POPULATION), draw)
            assert_equal(states[name], play(small_method(name), engine), "in order and shuffled")
