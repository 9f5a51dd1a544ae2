"""Every method holds every rule of the conformance suite."""

from __future__ import annotations

import pytest

from clusterfl.methods import IFCA, METHODS, FedAvg
from clusterfl.parts.local import SGD
from clusterfl.testing import check_method

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
SETTINGS: dict[str, dict[str, object]] = {
    "ifca": {"k": 2},
    "md-icfl": {"k": 2, "samples": 2, "iterations": 5},
    "hypcluster": {"k": 2},
    "pfa": {"k": 2, "group_round": 1},
    "robust-tkm": {"k": 2, "erm_epochs": 3},
}


@pytest.mark.parametrize("name", METHODS)
def test_conforms(name: str) -> None:
    check_method(METHODS[name](local=LOCAL, **SETTINGS.get(name, {})))


def test_ifca_with_one_cluster_is_fedavg() -> None:
    init = {"init_from": "independent"}
    check_method(IFCA(k=1, local=LOCAL, **init), counterpart=FedAvg(local=LOCAL, weights="uniform"))
