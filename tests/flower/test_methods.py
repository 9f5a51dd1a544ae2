"""Methods on four real nodes: second exchanges, kept state and proximal terms, to the simulator's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.federate import start
from tests.flower.real import TERMS, agrees_with_the_simulator, config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

METHODS = {
    "ifca": ["method.k=2", "rounds=3"],
    "md-icfl": ["method.k=2", "method.privacy=strong", "rounds=2", "eval_every=2"],
    "fedper": ["model.name=mlp", "rounds=2", "eval_every=2"],
    "fesem": ["method.k=2", "rounds=2", "eval_every=2"],
}


@pytest.mark.parametrize("name", METHODS)
def test_four_nodes(name: str, tmp_path: Path) -> None:
    asked = config(4, f"method.name={name}", *METHODS[name])
    start.local(asked, tmp_path / "r", 4, terms=TERMS)
    agrees_with_the_simulator(tmp_path / "r", asked, tmp_path / "sim")
