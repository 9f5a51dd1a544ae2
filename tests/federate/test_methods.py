"""Every method on nodes, without a line of its own for them: the simulator's figures, and on nodes' own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.errors import ConfigError, DataError
from clusterfl.federate.server import read_nodes
from clusterfl.methods import METHODS
from tests.federate.fleet import DIGITS, demo, own, run
from tests.federate.test_server import flowers
from tests.flower.real import same_results

FEW = {"fedfomo": ["method.models=3"]}  # four clients are fewer than it compares by itself


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_on_nodes_what_it_learns_in_simulation(name: str, tmp_path: Path) -> None:
    changes = [f"method.name={name}", *FEW.get(name, [])]
    federation, fleet = demo(tmp_path / "f", 4, *changes)
    run(federation, fleet)
    clusterfl.run(Config.load(None, [*DIGITS, "data.clients=4", *changes, "engine.name=serial"]), out=tmp_path / "sim")
    same_results(federation.run_folder, tmp_path / "sim")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_from_nodes_own_data(name: str, tmp_path: Path) -> None:
    files = flowers(tmp_path, {town: ["rose", "tulip"] for town in ("rome", "oslo", "bern", "lima")})
    federation, fleet = own(tmp_path / "f", files, f"method.name={name}", "rounds=2", *FEW.get(name, []))
    if "public samples" in METHODS[name].needs:
        with pytest.raises(ConfigError, match=r"name a file of them as public in federation.toml"):
            run(federation, fleet)
        np.savez(federation.folder / "wrong.npz", x=np.zeros((3, 4), np.float32))
        with pytest.raises(DataError, match="should be like the nodes', \\(5,\\)"):
            run(replace(federation, public="wrong.npz"), fleet)
        np.savez(federation.folder / "public.npz", x=np.random.default_rng(9).normal(size=(20, 5)).astype(np.float32))
        federation = replace(federation, public="public.npz")
    run(federation, fleet)
    assert [seen["rounds"] for seen in read_nodes(federation.run_folder)["seen"].values()] == [2, 2, 2, 2]
