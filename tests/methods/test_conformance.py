"""Every method holds every rule of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Pool, Stacked
from clusterfl.engines.wrappers import Wrapper
from clusterfl.method import Method, check_targets
from clusterfl.methods import (
    AWCFL,
    CFL,
    FCCA,
    FLHC,
    IFCA,
    MCFL,
    MDICFL,
    METHODS,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedDANE,
    FedDS,
    FedDSMIC,
    FedEM,
    FedPer,
    FedProx,
    FedRC,
    FedSGD,
    FeSEM,
    HypCluster,
    Local,
    PerFedAvg,
)
from clusterfl.parts.aggregate import Median
from clusterfl.testing import EngineMaker, check_method, check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.testing.wrapped import check_sums

from .small import LOCAL, SETTLED, SPLITTING, small_method


class Shared(Wrapper):
    """One pool for all methods: its processes take seconds to start."""

    def close(self) -> None:
        self.set_states({})


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(small_task(), small_population(), workers=2) as engine:
        yield engine


@pytest.mark.parametrize("name", METHODS)
def test_conforms(name: str, pool: Pool) -> None:
    engines: dict[str, EngineMaker] = {"pool": lambda task, population: Shared(pool)}
    check_method(small_method(name), engines=engines, settled=SETTLED.get(name, 2))


# of the others' procedures one of these has the like
QUICK = {"local", "fedavg", "fedsgd", "fedper", "per-fedavg", "fedfomo", "fedem", "ifca", "fl-hc", "mcfl"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, cls in METHODS.items()
        if not cls.needs_classes
    ],
)
def test_conforms_on_numbers(name: str) -> None:
    check_method(small_method(name), kind="regression", settled=SETTLED.get(name, 2))


def test_numbers_are_the_same_in_a_pool() -> None:
    check_method(small_method("ifca"), kind="regression", engines={"pool": partial(Pool, workers=1)})


def test_the_others_refuse_numbers() -> None:
    """In one sentence that says why; around a method that refuses, so does its wrapper."""
    names = {name for name, cls in METHODS.items() if cls.needs_classes}
    assert names == {"md-icfl", "fedds", "feddsmic", "fcca", "fedrc", "flux", "pacfl"}
    for method in [*map(small_method, sorted(names)), AWCFL(FedDS(k=2, local=LOCAL))]:
        check_targets(method, regression=False)
        with pytest.raises(ValueError, match=r"name='.+' should be a method that needs no classes .*: \S+ [a-z]+s "):
            check_targets(method, regression=True)


def test_ifca_with_one_cluster_is_fedavg() -> None:
    init = {"start": "independent"}
    check_method(IFCA(k=1, local=LOCAL, **init), counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_cfl_before_its_first_split_is_fedavg() -> None:
    check_method(CFL(local=LOCAL), counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_fl_hc_with_one_cluster_is_fedavg() -> None:
    check_method(FLHC(k=1, start_round=1, local=LOCAL), counterpart=FedAvg(local=LOCAL))


def test_feddsmic_with_one_cluster_is_per_fedavg() -> None:
    one = FedDSMIC(k=1, local=LOCAL, start="independent", weights="uniform", inner_lr=0.05)
    check_same(one, PerFedAvg(LOCAL, alpha=0.05))


@pytest.mark.parametrize("wrapper", [AWCFL, MCFL])
def test_a_wrapper_of_one_cluster_is_fedavg(wrapper: Any) -> None:
    base = IFCA(k=1, local=LOCAL, start="independent")
    check_same(wrapper(base), FedAvg(local=LOCAL, weights="uniform"))


@pytest.mark.parametrize(
    "method",
    [
        *(MDICFL(k=2, local=LOCAL, samples=2, iterations=5, warmup=0, privacy=p) for p in ("weak", "strong")),
        FedDS(k=2, local=LOCAL, warmup=0),
        FedDSMIC(k=2, local=LOCAL, warmup=0),
        FCCA(k=2, local=LOCAL, warmup=0, flow_steps=3, blocks=2, hidden=8, draws=16),
        FeSEM(k=2, local=LOCAL),
        FeSEM(k=2, local=LOCAL, matched=True),
        AWCFL(FeSEM(k=2, local=LOCAL)),
        MCFL(FeSEM(k=2, local=LOCAL)),
    ],
    ids=lambda m: m.name,
)
def test_the_five_systems_say_how_clear_their_clusters_are(method: Method) -> None:
    engine = Stacked(small_task(), small_population())
    state, ids = play(method, engine, 1), torch.arange(engine.clients)
    cohort = engine.cohort(ids, keys.key(5), 1)
    after = method.round(state, cohort)
    before, now = (method.serve(s, ids).index for s in (state, after))
    assert {"clusters_alive", "moved", "k", "margin", "ties"} <= cohort.logged.keys()
    assert cohort.logged["clusters_alive"] == len(now.unique())
    assert cohort.logged["moved"] == pytest.approx(float((before != now).float().mean()))


@pytest.mark.parametrize(
    "method",
    [
        AWCFL(CFL(local=LOCAL, **SPLITTING), beta=0.3, mix_for="both"),
        AWCFL(FLHC(k=2, start_round=1, local=LOCAL), beta=0.3, mix_for="train"),
        MCFL(CFL(local=LOCAL, **SPLITTING), download="end"),
        MCFL(CFL(local=LOCAL), feature="embedding", noise=0.1, norm="l1"),
        MCFL(AWCFL(IFCA(k=2, local=LOCAL))),
    ],
)
def test_wrappers_conform(method: Method) -> None:
    check_method(method)


SUMS = [Local(), FedAvg(), FedAvgFT(), FedProx(), FedSGD(), FedDANE(), PerFedAvg(), FedPer()]
SUMS += [Ditto(), FedEM(k=2, start="independent"), FedRC(k=2, start="independent")]
SUMS += [IFCA(k=2, start="independent"), HypCluster(k=2, start="independent")]
SUMS += [AWCFL(base=IFCA(k=2, start="independent"))]


@pytest.mark.parametrize("method", SUMS, ids=lambda m: m.name)
def test_methods_of_sums_alone_are_the_same_where_single_replies_are_masked(method: Any) -> None:
    assert method.only_sums()
    check_sums(replace(method, local=LOCAL) if hasattr(method, "local") else method, small_task(), small_population())


def test_no_other_method_says_so() -> None:
    says = {name for name, cls in METHODS.items() if cls.sums}
    assert says == {m.name for m in SUMS}
    assert not IFCA().only_sums() and not AWCFL().only_sums() and not FedAvg(aggregate=Median()).only_sums()


@dataclass(frozen=True)
class Boasting(CFL):
    """Says of a method that compares single models that it needs only their sums."""

    name = "boasting"
    sums = True


def test_a_method_that_looks_at_single_replies_is_found_out() -> None:
    with pytest.raises(AssertionError, match="boasting: with single replies masked"):
        check_sums(Boasting(local=LOCAL), small_task(), small_population())
