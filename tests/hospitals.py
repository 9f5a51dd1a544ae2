"""A table of hospitals in two kinds, whose labels are words: what a user brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import clusterfl
from clusterfl.config import Config

NAMES = [f"hospital-{i:02d}" for i in range(8)]


def hospital_table(names: list[str], rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Every other hospital reads the first number the other way round."""
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=(rows * len(names), 3)), np.repeat(np.arange(len(names)) % 2, rows)
    words = np.array(["mild", "none", "severe"])[np.digitize(np.where(group, -1, 1) * x[:, 0], [-0.6, 0.6])]
    return pd.DataFrame({"client": np.repeat(names, rows), "a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": words})


def hospital_run(folder: Path, *settings: str, **more: Any) -> Path:
    """A small run on them."""
    if not (folder / "t.csv").exists():
        hospital_table(NAMES).to_csv(folder / "t.csv", index=False)
    k = [] if any(setting.startswith("method.name") for setting in settings) else ["method.name=ifca", "method.k=2"]
    given = [f"data.source=table:{folder / 't.csv'}", *k, "rounds=4", "engine.name=serial", *settings]
    clusterfl.run(Config.load(None, given), out=folder / "run", **more)
    return folder / "run"
