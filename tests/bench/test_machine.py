"""How busy others keep a machine, from two readings."""

from __future__ import annotations

import pytest

from clusterfl.bench.machine import Reading, busy_ticks, load_between, load_per_core

STAT = """cpu  900 90 9 5000 50 3 2 1 0 0
cpu0 100 10 1 1000 50 1 2 4 8 8
cpu1 200 20 2 2000 50 0 0 0 0 0
cpu10 600 60 6 2000 50 0 0 0 0 0
intr 12345
"""


def test_our_own_load_is_not_counted() -> None:
    """A benchmark that has just kept two cores busy for ten seconds is no reason to call the machine busy."""
    before = Reading(clock=100.0, cores=5000.0, ours=40.0)
    assert load_between(before, Reading(110.0, 5020.0, 60.0)) == 0.0
    assert load_between(before, Reading(110.0, 5020.0, 45.0)) == pytest.approx(1.5), "the rest is others'"
    assert load_between(before, Reading(110.0, 5000.0, 40.0)) == 0.0
    assert load_between(before, Reading(110.0, 5001.0, 90.0)) == 0.0, "a child that ended brings all its seconds"


def test_only_cores_that_we_may_use_count_and_idling_does_not() -> None:
    assert busy_ticks(STAT, {0}) == 100 + 10 + 1 + 1 + 2 + 4
    assert busy_ticks(STAT, {0, 1}) == 118 + 222
    assert busy_ticks(STAT, {7}) == 0


def test_a_load_is_a_number() -> None:
    assert load_per_core() >= 0.0
