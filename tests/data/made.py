"""Populations and small files that tests of data share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build

KEY = keys.key(0)
RNG = np.random.default_rng(0)


def leaf_json(path: Path, users: dict[str, tuple[list[Any], list[float]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def made_images(n: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % classes).astype(np.uint8)


def made(**fields: Any) -> Population:
    return build(DataConfig(**fields), KEY)
