"""Bad replies are turned down, sound ones pass unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.engines import Serial, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper
from clusterfl.engines.wrappers.guard import Guard, finite
from clusterfl.message import Call, Chunk, Fields
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.local import Local
from clusterfl.testing import assert_equal, play, small_population, small_task
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
