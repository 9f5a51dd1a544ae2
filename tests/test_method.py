"""What a method is: classes that can be named, what it exchanges, what it serves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Flaky, Serial
from clusterfl.message import Cluster, Kept, Model, Weight
from clusterfl.method import Clusters, Registered, State, admitted, exchanged, log_margin, serve_clusters, serve_single
from clusterfl.methods import AWCFL, IFCA, MCFL, FedAvg, Local
from clusterfl.parts.describe import Describe
from clusterfl.parts.local import Losses, Train
from clusterfl.testing.small import CLIENTS, small_population, small_task


def test_classes_are_found_by_their_names_and_no_others() -> None:
    @dataclass(frozen=True)
    class Mine(State):
        x: int = 1

    assert Registered.find(Mine.tag()) is Mine and Registered.find(IFCA.tag()) is IFCA
    for tag in ("builtins:eval", "clusterfl.method:Nobody", ""):
        with pytest.raises(ValueError, match="should be one this program has imported"):
            Registered.find(tag)


def test_what_a_method_exchanges_is_told_before_anything_runs() -> None:
    found = exchanged(IFCA())
    assert found["IFCA.choose_and_train"] == {
        "theta": Model(of="centers", row="s"),
        "s": Cluster(of="centers"),
        "n": Weight(),
    }
    starts = {*Train.declared(), *Losses.declared(), *Describe.declared()}
    assert found.keys() == {"IFCA.choose_and_train", "IFCA.personalise", *starts}
    assert exchanged(AWCFL(IFCA(k=2))).keys() >= found.keys(), "its base's procedures are its own"
    assert exchanged(MCFL(AWCFL(IFCA(k=2)))).keys() >= exchanged(AWCFL(IFCA(k=2))).keys()
    assert all(isinstance(kind, Kept) for fields in exchanged(Local()).values() for kind in fields.values())


def test_served_models() -> None:
    theta = {"w": torch.tensor([1.0, 2.0])}
    one = serve_single(theta, torch.arange(3), personal=True)
    assert one.k == 1 and one.index.tolist() == [0, 0, 0] and one.personal and not one.by_data
    state = Clusters({"w": torch.arange(6.0).reshape(3, 2)}, torch.tensor([2, 0, 1, 1]))
    served = serve_clusters(state, torch.tensor([3, 0]))
    assert served.k == state.k == 3 and served.index.tolist() == [1, 2] and not served.personal


def test_newcomers_that_do_not_answer_wait_in_cluster_0() -> None:
    engine = Flaky(Serial(small_task(), small_population()), 0.0, frozenset({1}))
    cohort = engine.cohort(torch.tensor([5, 1, 3]), keys.key(0))
    centers = engine.task.init_stack(keys.key(0), 3)
    got = cohort.run(Losses().losses, {"centers": centers})
    served = admitted(centers, cohort, got, torch.tensor([2, 1]))
    assert got.ids.tolist() == [5, 3] and served.index.tolist() == [2, 0, 1]


def test_how_clear_a_choice_was() -> None:
    cohort = Serial(small_task(), small_population()).cohort(torch.arange(CLIENTS), keys.key(0))
    log_margin(cohort, torch.tensor([[1.0, 3.0], [2.0, 2.0], [4.0, 2.0]]))
    assert cohort.logged == {"margin": pytest.approx((2.0 + 0.0 + 1.0) / 3), "ties": 1.0}
    alone = Serial(small_task(), small_population()).cohort(torch.arange(CLIENTS), keys.key(0))
    log_margin(alone, torch.ones(3, 1))
    assert alone.logged == {}, "one cluster needs no choice"


def test_hyper_parameters_and_bases() -> None:
    base = IFCA(k=3)
    assert FedAvg(weights="uniform").hyper()["weights"] == "uniform" and FedAvg().bases() == []
    assert AWCFL(base).bases() == [base]
