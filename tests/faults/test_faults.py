"""Every row of the table, in small amounts."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.conftest import nothing_to_share

from .common import Tally
from .table import FAULTS

WORKERS = ("stopped-worker", "little-to-share", "interrupt-stopped")  # there are none where nothing can be shared


@pytest.mark.parametrize("row", [row for row, fault in FAULTS.items() if fault.small])
def test_fault(row: str, tmp_path: Path) -> None:
    if row in WORKERS and nothing_to_share():
        pytest.skip("/dev/shm has no room for what worker processes share")
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, where all clients are alike
        FAULTS[row].check(tally, FAULTS[row].small, tmp_path)
    assert tally.tried and tally.held == tally.tried, "\n".join(tally.failures)
