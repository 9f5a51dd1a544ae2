"""How models become one: the mean and the robust rules, alone, by cluster and in methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.engines import Serial
from clusterfl.engines.wrappers import Wrapper
from clusterfl.methods import IFCA, FedAvg, RobustTKM
from clusterfl.parts.aggregate import (
    CombineBy,
    Krum,
    Mean,
    MeanBy,
    Median,
    MultiKrum,
    Rule,
    Trimmed,
    combine_by,
    mean_by,
)
from clusterfl.parts.local import SGD
from clusterfl.parts.robust import median
from clusterfl.testing import check_method
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import Tree, repeat, row

from .stacks import models

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
ROBUST: tuple[Rule, ...] = (Median(), Trimmed(0.2), Krum(0.2), MultiKrum(0.2))
IDS = torch.arange(12)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(5, 15),
    share=st.floats(0.0, 0.49),
    rule=st.sampled_from([lambda _: Median(), Trimmed, Krum, MultiKrum]),
)
def test_attackers_cannot_leave_the_honest_range(n: int, share: float, rule: Callable[[float], Any]) -> None:
    liars = int(share * n + 1e-9)
    stack = {"w": torch.cat([keys.normal(keys.key(n), n - liars, 6), torch.full((liars, 6), 1e6)])}
    for lie in (1e6, -1e6, torch.nan, torch.inf):
        stack["w"][n - liars :] = lie
        got = rule(share).combine(stack)["w"]
        honest = stack["w"][: n - liars]
        assert bool((got >= honest.min(0).values - 1e-5).all() and (got <= honest.max(0).values + 1e-5).all())


@pytest.mark.parametrize("rule", [Mean(), *ROBUST], ids=lambda rule: rule.name)
def test_by_cluster(rule: Rule) -> None:
    theta, s = models(13), torch.tensor([0, 2] * 6 + [2])
    old = models(3, seed=9)
    got = combine_by(rule, theta, s, old=old)
    for k in (0, 2):
        part = {n: t[s == k] for n, t in theta.items()}
        want = row(combine_by(rule, part, torch.zeros(len(part["b"]), dtype=torch.int64), old=row_of(old, k)), 0)
        for name, t in want.items():
            torch.testing.assert_close(got[name][k], t)
    for name, t in old.items():
        assert torch.equal(got[name][1], t[1])  # the empty cluster keeps its model
    if not isinstance(rule, Mean):
        chunks = CombineBy(old, rule, by="s")
        for at in torch.arange(13).split(5):
            chunks.add(at, {"theta": {n: t[at] for n, t in theta.items()}, "s": s[at]})
        assert all(torch.equal(t, got[n]) for n, t in chunks.result().items())


def row_of(stack: Tree, k: int) -> Tree:
    return {n: t[k : k + 1] for n, t in stack.items()}


def test_only_the_mean_is_weighted() -> None:
    theta, s, old = models(4), torch.zeros(4, dtype=torch.int64), models(1, seed=9)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])
    want = (theta["b"] * w.unsqueeze(1)).sum(0) / 10
    torch.testing.assert_close(mean_by(theta, s, old=old, weights=w)["b"][0], want)
    for rule, expected in ((Mean(), want), (Median(), median(theta)["b"])):
        weighted = rule.by(old, weights="w")
        weighted.add(torch.arange(4), {"theta": theta, "w": w})
        torch.testing.assert_close(weighted.result()["b"][0], expected)


class Liars(Wrapper):
    """Some clients send their model multiplied by -50."""

    def __init__(self, inner: Serial, ids: set[int]) -> None:
        super().__init__(inner)
        self.ids = ids

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            scale = torch.tensor([-50.0 if int(i) in self.ids else 1.0 for i in call.ids[chunk.positions]])
            yield Chunk(chunk.positions, {n: self._lie(v, scale) for n, v in chunk.fields.items()})

    def _lie(self, value: Tensor | Tree, scale: Tensor) -> Tensor | Tree:
        if isinstance(value, Tensor):
            return value
        return {n: t * scale.reshape(-1, *([1] * (t.dim() - 1))) for n, t in value.items()}


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.name)
def test_fedavg_withstands_what_breaks_the_mean(rule: Rule) -> None:
    task, population = small_task(), small_population()

    def size(aggregate: Rule) -> float:
        engine = Liars(Serial(task, population), {3, 8})
        theta = play(FedAvg(LOCAL, aggregate=aggregate), engine).theta
        return max(float(t.abs().max()) for t in theta.values())

    assert size(rule) < 3 < size(Mean())


def test_robust_methods_conform() -> None:
    check_method(IFCA(k=2, local=LOCAL, aggregate=Trimmed()))


def test_the_mean_streams_and_holds_no_more_than_its_clusters() -> None:
    old = models(2, seed=9)
    mean, robust = Mean().by(old, by="s"), Median().by(old, by="s")
    assert isinstance(mean, MeanBy) and isinstance(robust, CombineBy)
    theta, s = models(6), torch.tensor([0, 1, 0, 1, 0, 1])
    for at in torch.arange(6).split(2):
        mean.add(at, {"theta": {n: t[at] for n, t in theta.items()}, "s": s[at]})
    assert {n: t.shape for n, t in mean.sums.items()} == {n: t.shape for n, t in old.items()}
    assert all(torch.equal(t, mean.result()[n]) for n, t in mean_by(theta, s, old=old).items())


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"attackers=0\.5 should"):
        Trimmed(attackers=0.5)
    for rule in (Krum, MultiKrum):
        with pytest.raises(ValueError, match=r"attackers=-0\.1 should"):
            rule(-0.1)


@pytest.mark.parametrize("make", [FedAvg, IFCA, RobustTKM])
def test_a_rule_is_a_part_and_anything_else_is_refused(make: Any) -> None:
    """A name alone is what a config has; Python takes the part, and says so before anything is trained."""
    with pytest.raises((ValueError, TypeError), match="aggregate='max' should be"):
        make(aggregate="max")


def test_a_streamed_mean_equals_the_mean_of_all_replies() -> None:
    engine = Serial(small_task(), small_population())
    theta = repeat(engine.task.init(keys.key(0)), 2)
    s = IDS % 2
    mean = MeanBy(theta, by=s, weights="n")
    got = engine.cohort(IDS, keys.key(0)).run(FedAvg(local=LOCAL).train, {"theta": row(theta, 0)}, into=mean)
    assert "theta" not in got.fields and "n" in got.fields
    full = engine.cohort(IDS, keys.key(0)).run(FedAvg(local=LOCAL).train, {"theta": row(theta, 0)})
    for name, t in mean.result().items():
        for k in range(2):
            w = full["n"][s == k].double()
            rows_ = full["theta"][name][s == k].double()
            by_hand = (rows_ * w.reshape(-1, *([1] * (rows_.dim() - 1)))).sum(0) / w.sum()
            assert torch.allclose(t[k].double(), by_hand, atol=1e-6)
