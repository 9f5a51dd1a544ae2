"""A small made-up experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterfl.reproduce.spec import Cell
from clusterfl.reproduce.store import decisive, digest

TINY = """
citation = "Some, A paper, 2020"
title = "Turned digits"
metrics = ["accuracy_mean", "ari"]
notes = ["The step size is not given."]

[base]
rounds = 2
[base.data]
source = "digits"
clients = 6
clusters = 2
samples = 12
test_samples = 20
[base.local]
lr = 0.1
batch = 6

[scale.laptop]
rounds = 1

[[settings]]
name = "R=0.5"
config = { participation = 0.5 }

[[settings]]
name = "R=1.0"
scale.laptop.data = { samples = 8 }

[[rows]]
name = "Global"
method = { name = "fedavg" }
paper = { "R=0.5" = [10.0], "R=1.0" = [99.9] }

[[rows]]
name = "IFCA+2"
method = { name = "ifca", k = 2 }
config = { local = { lr = 0.2 } }
paper = { "R=1.0" = ["-", -1.0] }
"""


def result(cell: Cell, **metrics: float | None) -> dict[str, Any]:
    config = cell.config()
    return {
        "digest": digest(config),
        "seed": cell.seed,
        "seconds": 7.0,
        "metrics": metrics,
        "config": decisive(config),
    }


def made_folder(root: Path) -> Path:
    """An experiments folder with it, beside a docs folder."""
    (root / "experiments" / "some").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "experiments" / "some" / "table1.toml").write_text(TINY)
    return root / "experiments"
