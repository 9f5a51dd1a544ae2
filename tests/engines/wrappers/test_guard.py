"""Bad replies are turned down, sound ones pass unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.engines.wrappers.guard import Guard, finite
from clusterfl.errors import NoReplies
from clusterfl.message import Fields
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedper import FedPer
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.local import Local
from clusterfl.parts.local import SGD
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import is_finite
from tests.engines.probe import RULE, cohort
from tests.engines.wrappers.exchanges import Unusual

BAD = 3  # the client that answers badly


class Corrupting(Wrapper):
    """One client's reply is changed between the client, which checks what it sends itself, and the server."""

    def __init__(self, inner: BaseEngine, change: Callable[[dict[str, Any]], Fields]) -> None:
        super().__init__(inner)
        self.change = change

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):  # a client at a time
            bad = call.ids[chunk.positions].tolist() == [BAD]
            yield Chunk(chunk.positions, self.change(dict(chunk.fields))) if bad else chunk


def with_weight(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Any]], Fields]:
    return lambda f: {**f, "theta": {**f["theta"], "0.weight": change(f["theta"]["0.weight"])}}


def one_inf(w: Tensor) -> Tensor:
    w = w.clone()
    w[0, 0, 0] = torch.inf
    return w


LIES: dict[str, Callable[[dict[str, Any]], Fields]] = {
    "nan": lambda f: {**f, "theta": {n: t * torch.nan for n, t in f["theta"].items()}},
    "one inf": with_weight(one_inf),
    "shape": with_weight(lambda w: w[:, :, :2].clone()),
    "broadcast": with_weight(lambda w: w[:, :1].clone()),
    "dtype": with_weight(lambda w: w.double()),
    "missing": lambda f: {**f, "theta": {n: t for n, t in f["theta"].items() if n != "0.bias"}},
    "extra": lambda f: {**f, "surprise": torch.zeros(1, 2)},
    **{f"n={n}": lambda f, n=n: {**f, "n": torch.tensor([n])} for n in (0.0, -1.0, math.nan, 1e12)},
}


@pytest.mark.parametrize("how", LIES)
def test_a_bad_reply_is_rejected_and_the_round_goes_on(how: str) -> None:
    population = small_population()
    guard = Guard(Corrupting(Wire(small_task(), population), LIES[how]), sample=population.train.x[0])
    theta = guard.task.init(keys.key(0))
    got = cohort(guard).run(FedAvg(local=RULE).train, {"theta": theta})
    assert got.ids.tolist() == [i for i in range(12) if i != BAD]
    assert guard.rejected == {BAD: 1} and guard.rejections() == 1
    assert got["theta"]["0.weight"].dtype == torch.float32


@pytest.mark.parametrize("s", [-1, 2, 10**6])
def test_a_cluster_that_was_not_on_offer_is_rejected_whatever_the_field_is_called(s: int) -> None:
    population = small_population()
    lying = Corrupting(Wire(small_task(), population), lambda f: {**f, "home": torch.tensor([s])})
    guard = Guard(lying, sample=population.train.x[0])
    got = cohort(guard).run(Unusual().choose, {"nets": guard.task.init_stack(keys.key(0), 2)})
    assert got.ids.tolist() == [i for i in range(12) if i != BAD] and guard.rejected == {BAD: 1}


@pytest.mark.parametrize("size", [0.0, -3.0, math.inf, 1e12])
def test_a_weight_that_cannot_be_is_rejected_whatever_the_field_is_called(size: float) -> None:
    population = small_population()
    lying = Corrupting(Wire(small_task(), population), lambda f: {**f, "mass": torch.tensor([size])})
    guard = Guard(lying, sample=population.train.x[0], most=34.0)
    got = cohort(guard).run(Unusual().choose, {"nets": guard.task.init_stack(keys.key(0), 2)})
    assert got.ids.tolist() == [i for i in range(12) if i != BAD] and guard.rejected == {BAD: 1}


def test_a_guard_lets_sound_replies_through_unchanged() -> None:
    population = small_population()
    for method in (FedAvg(local=RULE), IFCA(k=2, local=RULE), Local(local=RULE)):
        guard = Guard(Serial(small_task(), population), sample=population.train.x[0])
        assert_equal(play(method, Serial(small_task(), population)), play(method, guard), method.name)
        assert guard.rejected == {}


def test_finite_rows() -> None:
    big = torch.finfo(torch.float32).max
    rows = torch.tensor([[1.0, 2.0], [torch.inf, 1.0], [torch.nan, 1.0], [torch.inf, -torch.inf], [big, big]])
    assert finite(rows).tolist() == [True, False, False, False, True]
    assert finite(torch.zeros(2, 0)).tolist() == [True, True]


# -- what clients keep --------------------------------------------------------------------------------

DIVERGING = SGD(lr=1e30, lr_decay=1e-31, batch=10)  # in the first round, and sound in the second


def kept_after_divergence(engine: BaseEngine, method: Any) -> dict[int, Any]:
    """What clients keep after a round in which they diverged, and one in which they did not."""
    guard = Guard(engine, sample=small_population().train.x[0])
    ids, state = torch.arange(guard.clients), method.init(guard.task, cohort(guard), keys.key(7))
    with pytest.raises(NoReplies):
        method.round(state, guard.cohort(ids, keys.key(1), 0))
    assert sum(guard.rejected.values()) == len(ids) and guard.states() == {}, "a rejected client keeps what it had"
    method.round(state, guard.cohort(ids, keys.key(2), 1))
    return guard.states()


@pytest.mark.parametrize("method", [FedPer(local=DIVERGING), Local(local=DIVERGING)], ids=lambda m: m.name)
def test_kept_state_is_committed_only_with_an_accepted_reply(method: Any, pool: Pool) -> None:
    """One divergent round once left NaN with its clients for ever."""
    pool.set_states({})
    task, population = small_task(), small_population()
    reference = kept_after_divergence(Serial(task, population), method)
    assert len(reference) == 12 and all(is_finite(tree) for tree in reference.values())
    for engine in (Wire(task, population), pool):
        assert_equal(reference, kept_after_divergence(engine, method), type(engine).__name__)
    assert_close(reference, kept_after_divergence(Stacked(task, population), method), "stacked", 1e-4)


def test_a_reply_that_never_arrives_commits_nothing() -> None:
    lost = Wire(small_task(), small_population(), lambda reply: [])
    with pytest.raises(NoReplies):
        cohort(lost).run(Local(local=RULE).train)
    assert lost.states() == {}


def test_only_the_rejected_call_is_taken_back() -> None:
    sound, divergent = Local(local=RULE), Local(local=SGD(lr=1e30, batch=10))
    guard = Guard(Serial(small_task(), small_population()), sample=small_population().train.x[0])
    cohort(guard).run(sound.train)
    before = guard.states()
    with pytest.raises(NoReplies):
        cohort(guard).run(divergent.train)
    assert_equal(before, guard.states(), "what they kept before")
