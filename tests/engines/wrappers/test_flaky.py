"""Clients that drop out."""

from __future__ import annotations

import pytest
import torch

from clusterfl.engines import Flaky, Serial
from clusterfl.errors import NoReplies
from clusterfl.testing.small import small_population, small_task
from tests.engines.probe import Probe, cohort


def test_flaky_loses_the_same_clients_each_time_and_nobody_means_no_replies() -> None:
    lost = [cohort(Flaky(Serial(small_task(), small_population()), 0.5)).run(Probe().count).ids for _ in range(2)]
    assert torch.equal(lost[0], lost[1]) and 0 < len(lost[0]) < 12
    nobody = cohort(Flaky(Serial(small_task(), small_population()), 1.0))
    with pytest.raises(NoReplies, match=r"Probe\.count"):
        nobody.run(Probe().count)
    assert nobody.logged["silent"] == 12
    with pytest.raises(ValueError, match="drop=2"):
        Flaky(Serial(small_task(), small_population()), 2.0)


def test_who_is_asked_in_vain_is_counted_over_a_rounds_calls() -> None:
    asked = cohort(Flaky(Serial(small_task(), small_population()), 0.5))
    first, second = asked.run(Probe().count), asked.run(Probe().count)
    assert asked.logged["silent"] == 24 - len(first) - len(second) > 0
    everybody = cohort(Serial(small_task(), small_population()))
    everybody.run(Probe().count)
    assert "silent" not in everybody.logged
