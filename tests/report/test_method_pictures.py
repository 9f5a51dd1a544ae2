"""What a method alone can show, out of real runs' last states."""

from __future__ import annotations

from pathlib import Path

import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.report.method_pictures import method_figures
from clusterfl.report.runs import read_run

SMALL = ["data.clients=8", "data.samples=30", "data.test_samples=40", "engine.name=serial"]
ALWAYS_CUT = ["method.relative=false", "method.eps1=100.0", "method.eps2=0.0", "method.gap=none"]
CASES = {
    "cfl": (["rounds=3", "method.start_round=1", *ALWAYS_CUT], "Split tree", "cluster 1 left cluster 0"),
    "fedfomo": (["rounds=2"], "Whose models help whom", "client"),
    "awcfl": (
        ["rounds=1", "method.base.name=ifca", "method.base.k=4", "method.beta=0.2"],
        "What beta does",
        "beta = 0.2",
    ),
    "md-icfl": (["rounds=1", "method.k=2", "method.warm=true"], "Pseudo samples", "cluster 1"),
    "kin": (["rounds=1"], "The evidence between clients", "client"),
    "fcca": (
        ["rounds=1", "model.name=mlp", "method.k=2", "method.warmup=1"],
        "How alike the clients' flows are",
        "S: B",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_has_its_picture(name: str, tmp_path: Path) -> None:
    settings, title, words = CASES[name]
    clusterfl.run(Config.load(None, [*SMALL, f"method.name={name}", *settings]), out=tmp_path)
    figures = {figure.title: figure for figure in method_figures(read_run(tmp_path))}
    assert words in figures[title].drawing and "nan" not in figures[title].drawing


def test_others_have_none(tmp_path: Path) -> None:
    clusterfl.run(Config.load(None, [*SMALL, "method.name=ifca", "rounds=1"]), out=tmp_path)
    assert method_figures(read_run(tmp_path)) == []
    for checkpoint in (tmp_path / "checkpoints").glob("*.ckpt"):
        checkpoint.unlink()
    assert method_figures(read_run(tmp_path)) == []
