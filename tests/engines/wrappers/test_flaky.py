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
    with pytest.raises(NoReplies, match=r"Probe\.count"):
        cohort(Flaky(Serial(small_task(), small_population()), 1.0)).run(Probe().count)
    with pytest.raises(ValueError, match="drop=2"):
        Flaky(Serial(small_task(), small_population()), 2.0)
