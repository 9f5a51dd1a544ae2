"""The server's own limit: long updates are cut, short ones keep their bits, and it is the update that is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Serial, Stacked, Wire
from clusterfl.engines.wrappers.clip import Clip
from clusterfl.methods import FedAvg, FedSGD
from clusterfl.testing.small import CLIENTS, small_population, small_task

from .exchanges import BOTH, BOTH_CHOOSING, IDS, RULE, Usual, flatten, moved


def test_long_updates_are_cut_and_short_ones_keep_their_bits() -> None:
    population, method = small_population(), FedAvg(local=RULE)
    theta, names = small_task().init(keys.key(0)), small_task().params
    start = torch.cat([theta[n].flatten() for n in names]).double()
    plain = Serial(small_task(), population).cohort(IDS, keys.key(1)).run(method.train, {"theta": theta})
    lengths = (flatten(plain["theta"], names) - start).norm(dim=1)
    limit = float(lengths.sort().values[CLIENTS // 2 - 1 : CLIENTS // 2 + 1].mean())
    clip = Clip(Serial(small_task(), population), limit)
    cut = clip.cohort(IDS, keys.key(1)).run(method.train, {"theta": theta})
    short = lengths <= limit
    assert 0 < int(short.sum()) < CLIENTS
    after = flatten(cut["theta"], names) - start
    assert torch.allclose(after.norm(dim=1), lengths.clamp(max=limit), rtol=1e-4)
    assert all(torch.equal(cut["theta"][n][short], plain["theta"][n][short]) for n in names)
    assert torch.equal(cut["n"], plain["n"])


@pytest.mark.parametrize("make", [Serial, Stacked, Wire])
@pytest.mark.parametrize("exchange", [BOTH, BOTH_CHOOSING], ids=["one model", "a choice of two"])
def test_the_update_is_cut_whatever_the_fields_are_called(exchange: Any, make: Any) -> None:
    """With `w` sent and `model` returned, the whole model was once cut to the limit, silently."""
    limit = 0.1
    plain = exchange["unusual"](make(small_task(), small_population()))
    usual, unusual = (exchange[names](Clip(make(small_task(), small_population()), limit)) for names in exchange)
    assert torch.equal(unusual, usual)
    lengths = plain.norm(dim=1, keepdim=True)
    assert bool((lengths > limit).all()), "all of them are to be cut"
    assert torch.allclose(unusual, plain * limit / lengths, atol=1e-6)


def test_a_gradient_is_an_update_as_it_stands() -> None:
    theta, names = small_task().init(keys.key(0)), small_task().params
    plain, cut = (
        flatten(e.cohort(IDS, keys.key(1)).run(FedSGD(RULE).gradient, {"theta": theta})["grad"], names)
        for e in (Serial(small_task(), small_population()), Clip(Serial(small_task(), small_population()), 0.05))
    )
    assert torch.allclose(cut, plain * 0.05 / plain.norm(dim=1, keepdim=True), atol=1e-6)


def test_a_client_that_does_not_move_stays_where_it_is() -> None:
    """A length of zero is no reason to divide by it."""

    class Still(Serial):
        def execute(self, call: Any) -> Any:
            for chunk in super().execute(call):
                theta = {n: t.expand(len(chunk.positions), *t.shape) for n, t in call.shared["theta"].items()}
                yield chunk._replace(fields={**chunk.fields, "theta": theta})

    still = Clip(Still(small_task(), small_population()), 0.1)
    assert not moved(still, Usual().train, "theta", "theta").any()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_limits_that_cannot_be(limit: float) -> None:
    with pytest.raises(ValueError, match=r"clip_updates=.* should be above 0"):
        Clip(Serial(small_task(), small_population()), limit)
