"""A run's folder that a federation has left is one like any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from clusterfl.config import Config
from clusterfl.runs.compare import finished
from tests.commands.calls import call


def every_command_works(run: Path, scratch: Path) -> None:
    """Commands that read a run read this one; its clients are its nodes."""
    config = Config.load(run / "config.toml")
    population = config.population()
    x, y = population.train.of(0)
    (scratch / "new").mkdir()
    np.savez(scratch / "new" / "late.npz", x=x.numpy(), y=y.numpy())
    np.savez(scratch / "samples.npz", x=x[:3].numpy())

    def said(*arguments: str) -> str:
        done = call(*arguments)
        assert done.exit_code == 0, (arguments, done.output)
        return str(done.stdout)

    assert f"true clusters: {config.data.clusters}" in said("inspect", str(run / "config.toml"))
    assert "node-0" in said("export", str(run), "--to", str(scratch / "exported"))
    told = json.loads(said("predict", str(run), "--client", "node-1", "--data", str(scratch / "samples.npz"), "--json"))
    assert told["client"] == "node-1" and len(told["predictions"]) == 3
    assert json.loads(said("admit", str(run), "--data", f"folder:{scratch / 'new'}", "--json"))["clients"].keys() == {
        "late"
    }
    said("report", str(run))
    assert "node-0" in (run / "report.html").read_text()
    assert "is finished" in said("resume", str(run))
    reread = finished(run, config)  # as a comparison takes over what is there
    assert reread is not None and reread["rounds"] == config.rounds
