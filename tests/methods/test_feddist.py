"""FedDist and FedDWS: a part of the way to the mean."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Serial
from clusterfl.methods import FedAvg, FedDist, FedDWS
from clusterfl.parts.local import SGD, Train
from clusterfl.parts.start import first_net
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_the_whole_way_is_fedavg() -> None:
    check_same(FedDist(LOCAL, eps=1.0), FedAvg(LOCAL, weights="uniform"))
    check_same(FedDWS(LOCAL, eps=1.0), FedAvg(LOCAL, weights="size"))


@pytest.mark.parametrize("method", [FedDist(LOCAL), FedDWS(LOCAL)])
def test_against_the_formula(method: FedDist | FedDWS) -> None:
    task, engine = small_task(), Serial(small_task(), small_population())
    got = play(method, engine, rounds=1).theta
    start = first_net(task, keys.key(7))
    cohort = engine.cohort(torch.arange(12), keys.fold_in(keys.key(7), "round", 0))
    replies = cohort.run(Train(LOCAL).train, {"theta": start})
    n = replies["n"].double() if isinstance(method, FedDWS) else torch.ones(12).double()
    for name, w in start.items():
        share = (n / n.sum()).reshape(-1, *([1] * w.dim()))
        want = w + 0.6 * (share * (replies["theta"][name].double() - w)).sum(0)
        torch.testing.assert_close(got[name], want.float(), rtol=1e-5, atol=1e-6)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"eps=1\.5"):
        FedDWS(eps=1.5)
