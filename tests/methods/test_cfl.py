"""CFL: ids survive the second level of splits, clusters partition the clients, nothing splits without reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clusterfl
from clusterfl import keys
from clusterfl.cohort import Cohort
from clusterfl.config import Config
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods.cfl import CFL, CFLState
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.sketch import Moves
from clusterfl.record import Outcome, Schedule
from clusterfl.task import Task
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import repeat

from .points import LOCAL, TARGETS, TRUTH, point_task, points

EAGER = CFL(local=LOCAL, start_round=3)


def run(method: CFL, rounds: int, participation: float = 1.0, unseen: int = 0, truth: Tensor = TRUTH) -> Outcome:
    population = points(truth, unseen=unseen)
    engine = Stacked(point_task(), population)
    return Simulation(method, population, engine, Schedule(rounds, participation, eval_every=rounds)).run()


def test_four_groups_on_two_levels_with_mixed_up_ids() -> None:
    """Positions inside a sub-cluster, taken for ids, would lose half of the clients at the second level."""
    found = run(EAGER, 30)
    assert found.clusters is not None and found.clusters.ari == 1.0 and found.clusters_found == 4
    assert [(s.parent, s.child) for s in found.state.splits] in ([(0, 1), (0, 2), (1, 3)], [(0, 1), (1, 2), (0, 3)])
    for i, group in enumerate(TRUTH.tolist()):
        torch.testing.assert_close(found.served.models["w"][found.served.index[i]], TARGETS[group], atol=0.05, rtol=0.0)


def test_unseen_clients_descend_the_tree() -> None:
    found = run(EAGER, 30, unseen=6)
    assert found.unseen_assign is not None
    served = torch.cat([found.served.index, found.unseen_assign])
    assert clustering(served, TRUTH).ari == 1.0


def test_clients_that_missed_a_split_go_through_it_when_they_are_next_asked() -> None:
    found = run(EAGER, 60, participation=0.5)
    assert found.clusters is not None and found.clusters.ari == 1.0
    assert int(found.state.passed.min()) >= 1


def test_splits_survive_drop_outs() -> None:
    population = points()
    engine = Flaky(Serial(point_task(), population), 0.3)
    found = Simulation(EAGER, population, engine, Schedule(60, eval_every=60)).run()
    assert found.clusters is not None and found.clusters.ari == 1.0


@pytest.mark.parametrize(("target", "noise"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.05)])
def test_clients_that_are_alike_stay_together(target: float, noise: float) -> None:
    """Nothing to learn (zero updates), equal updates, updates equal but for noise: finite, and no split."""
    population = points(targets=torch.full((4, 3), target), noise=noise)
    state = play(EAGER, Serial(point_task(), population), 20)
    assert state.k == 1 and state.centers["w"].isfinite().all() and state.peak.isfinite()


def test_absolute_thresholds_and_the_other_gates() -> None:
    """A round goes 1 - 0.7^2 = 0.51 of the way: where all four targets cancel out, updates have norm 2.55."""
    options = {"relative": False, "local": LOCAL, "start_round": 3}
    assert run(CFL(**options, eps1=0.4, eps2=1.6), 12).clusters_found >= 2
    assert run(CFL(**options, eps1=0.4, eps2=3.0), 12).clusters_found == 1, "max norm"
    assert run(CFL(**options, eps1=0.0, eps2=1.6), 12).clusters_found == 1, "mean norm"
    assert run(CFL(**options, min_size=17), 12).clusters_found == 1, "size"
    # the largest cosine across is that of (4, 3, 0) and (-4, 0, 3): -0.64, so the bound is 0.906
    assert run(CFL(**options, gamma=0.85), 12).clusters_found >= 2
    assert run(CFL(**options, gamma=0.95), 12).clusters_found == 1, "noise"
    assert run(CFL(**options, gap=2.0), 12).clusters_found == 1, "no cosines are further apart than 2"
    assert run(replace(EAGER, start_round=12), 12).clusters_found == 1, "too early"
    assert run(replace(EAGER, start_round=11), 12).clusters_found == 2
    assert [run(replace(EAGER, max_clusters=k), 30).clusters_found for k in (1, 2, 3, None)] == [1, 2, 3, 4]


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_relative_thresholds_do_not_depend_on_the_size_of_updates(scale: float) -> None:
    """The same problem in other units: fixed thresholds never cut it when updates are small."""
    population = points(targets=scale * TARGETS, noise=0.02 * scale)

    def found(method: CFL) -> Outcome:
        engine = Stacked(point_task(), population)
        return Simulation(method, population, engine, Schedule(30, eval_every=30)).run()

    ours = found(EAGER)
    assert ours.clusters is not None and ours.clusters.ari == 1.0
    if scale == 0.01:
        assert found(replace(EAGER, relative=False)).clusters_found == 1


def test_branch_directions_are_mean_updates() -> None:
    found = run(EAGER, 12)
    first = found.state.splits[0]
    left = (TRUTH < 2) == bool(TRUTH[0] < 2)
    pulls = torch.stack([TARGETS[TRUTH[side]].mean(dim=0) for side in (left, ~left)])
    torch.testing.assert_close(first.directions, 0.51 * (pulls - first.theta["w"]), atol=0.02, rtol=0.0)


@given(seed=st.integers(0, 10_000), rounds=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_clusters_always_partition_the_clients(seed: int, rounds: int) -> None:
    """Random updates of random cohorts, and a split wherever there is one to make."""
    n, method = 12, CFL(r1=100.0, r2=0.0, gap=None, min_size=2, start_round=0)
    task, key = small_task(), keys.key(seed)
    engine = Serial(task, small_population())
    zeros = torch.zeros(n, dtype=torch.int64)  # everybody in cluster 0, nobody through a split
    state = CFLState(repeat(task.init(key), 1), zeros, (), zeros, torch.ones(()))
    for t in range(rounds):
        ids = keys.permutation(keys.fold_in(key, "order", t), n)[: 4 + int(keys.randint(keys.fold_in(key, t), 9))]
        drawn = keys.normal(keys.fold_in(key, "moves", t), len(ids), 5)
        moves = Moves.of({"w": drawn}, {"w": torch.zeros(5)}, ("w",))
        before = state
        for c in range(before.k):
            state = method.maybe_split(state, Cohort(engine, ids, key, t), c, ids, moves)
        assert state.assign.unique().tolist() == list(range(state.k)), "every cluster has clients"
        assert state.k == 1 + len(state.splits) == state.centers["0.weight"].shape[0]
        moved = (state.assign != before.assign).nonzero().flatten()
        assert set(moved.tolist()) <= set(ids.tolist()), "only clients of the cohort move"
        parents = {s.child: s.parent for s in state.splits[len(before.splits) :]}
        for i in moved.tolist():
            assert parents[int(state.assign[i])] == int(before.assign[i]), "and only out of the cluster that was cut"
        for s in state.splits[len(before.splits) :]:
            asked = before.assign[ids] == s.parent
            sides = state.assign[ids[asked]]
            assert set(sides.tolist()) == {s.parent, s.child}, "both sides have clients"


@pytest.mark.parametrize("shift", ["rotate", "swap_labels"])
def test_planted_clusters_are_found_with_default_settings(shift: str) -> None:
    population = build(DataConfig(clients=24, unseen=4, clusters=4, shift=shift, test_samples=200), keys.key(5))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    found = Simulation(CFL(), population, Stacked(task, population), Schedule(40, eval_every=40)).run()
    assert found.clusters is not None and found.clusters.ari == 1.0
    assert found.unseen_assign is not None and found.clusters_found == 4
    assert clustering(torch.cat([found.records[-1].assign, found.unseen_assign]), population.truth).ari == 1.0
    assert found.accuracy.mean > 0.9


@pytest.mark.parametrize(("shift", "clusters"), [("rotate", 4), ("none", 1)])
def test_clusters_are_found_before_long_local_training_hides_them(shift: str, clusters: int) -> None:
    """With five local epochs one net learns all four rotations: after 20 rounds updates are too small to be cut."""
    world = ["data.source=digits", "data.clients=24", f"data.clusters={clusters}", f"data.shift={shift}", "seed=5"]
    more = ["model.name=mlp", "local.epochs=5", "rounds=22", "eval_every=22", "engine.name=stacked"]
    found = clusterfl.run(Config.load(None, ["method.name=cfl", *world, *more]))
    assert found.clusters is not None and found.clusters.ari == 1.0 and found.clusters_found == clusters


def test_wrong_settings_say_so() -> None:
    for options in ({"r1": -0.1}, {"min_size": 1}, {"gamma": 2.0}, {"eps2": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CFL(**options)
