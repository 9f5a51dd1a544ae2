"""Real federations on loopback, beside the simulation of the same config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import clusterfl
from clusterfl.config import Config
from clusterfl.engines.flower.engine import Terms
from clusterfl.runs.model_files import load_models

SMALL = ["data.samples=20", "data.test_samples=40", "data.clusters=2", "data.unseen=0", "local.epochs=1"]
TERMS = Terms(timeout=240.0, wait=400.0, least=1)  # machines that test are busy


def config(nodes: int, *changes: str) -> Config:
    return Config.load(None, [*SMALL, f"data.clients={nodes}", *changes])


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def agrees_with_the_simulator(folder: Path, asked: Config, scratch: Path) -> None:
    """Assignments, bytes and accuracy are the simulator's, and weights agree to 1e-6."""
    engine = Config.load(None, ["engine.name=serial"]).engine
    clusterfl.run(asked.model_copy(update={"engine": engine}), out=scratch)
    same_results(folder, scratch)


def same_results(folder: Path, scratch: Path) -> None:
    """A run on nodes and its simulation."""
    ours, theirs = summary(folder), summary(scratch)
    assert list(ours["assignments"].values()) == list(theirs["assignments"].values())
    for name in ("bytes_up", "bytes_down", "accuracy_mean", "rounds", "data_sha256"):
        assert ours[name] == theirs[name], name
    models, others = load_models(folder), load_models(scratch)
    assert models.keys() == others.keys()
    for k, tree in models.items():
        for name, t in tree.items():
            assert torch.allclose(t, others[k][name], rtol=0, atol=1e-6), (k, name)
