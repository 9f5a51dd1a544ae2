"""Every method holds every rule of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterfl.engines import Pool
from clusterfl.engines.flaky import Wrapper
from clusterfl.method import Method
from clusterfl.methods import AWCFL, CFL, FLHC, IFCA, MCFL, METHODS, FedAvg
from clusterfl.parts.local import SGD
from clusterfl.testing import check_method, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
SPLITTING: dict[str, object] = {"start_round": 1, "r1": 10.0, "r2": 0.0, "gap": None}  # a cut in every round
SETTINGS: dict[str, dict[str, object]] = {
    "ifca": {"k": 2},
    "fesem": {"k": 2},
    "fedds": {"k": 2, "warmup": 1},
    "feddsmic": {"k": 2, "warmup": 1},
    "fcca": {"k": 2, "warmup": 1, "flow_steps": 3, "blocks": 2, "hidden": 8, "draws": 16},
    "md-icfl": {"k": 2, "samples": 2, "iterations": 5},
    "hypcluster": {"k": 2},
    "pfa": {"k": 2, "group_round": 1},
    "robust-tkm": {"k": 2, "erm_epochs": 3},
    "cfl": SPLITTING,
    "fl-hc": {"k": 2, "start_round": 1},
    "awcfl": {"base": IFCA(k=2, local=LOCAL)},
    "mcfl": {"base": IFCA(k=2, local=LOCAL)},
}


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
    local = {"local": LOCAL} if "local" in METHODS[name].__dataclass_fields__ else {}  # a wrapper's base has it
    check_method(
        METHODS[name](**local, **SETTINGS.get(name, {})), engines={"pool": lambda task, population: Shared(pool)}
    )


def test_ifca_with_one_cluster_is_fedavg() -> None:
    init = {"init_from": "independent"}
    check_method(IFCA(k=1, local=LOCAL, **init), counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_cfl_before_its_first_split_is_fedavg() -> None:
    check_method(CFL(local=LOCAL), counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_fl_hc_with_one_cluster_is_fedavg() -> None:
    check_method(FLHC(k=1, start_round=1, local=LOCAL), counterpart=FedAvg(local=LOCAL))


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
