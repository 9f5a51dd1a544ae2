"""Configs that are misspelt, of the wrong type or out of range."""

from __future__ import annotations

import dataclasses
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.config.schema import _TABLES
from clusterfl.methods import METHODS
from clusterfl.models import MODELS
from clusterfl.runs.setup import prepare

from .common import Tally
from .refusals import refuses


def misspelt_config(tally: Tally, amount: int, folder: Path) -> None:
    """Every key of the config, misspelt, of the wrong type, and (where it has one) out of its range."""
    every: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in Config.model_fields]
    every += [(f"{t}.{f.name}", {}) for t, cls in _TABLES.items() for f in dataclasses.fields(cls)]
    for name, cls in METHODS.items():
        own = [f.name for f in dataclasses.fields(cls) if f.name != "local"]  # type: ignore[arg-type]
        every += [(f"method.{n}", {"method": {"name": name}}) for n in own]
    for name, entry in MODELS.items():
        every += [(f"model.{n}", {"model": {"name": name}}) for n in entry.params]
    cases = every if amount >= len(every) else random.Random(21).sample(every, amount)
    for key, base in cases:
        for what, path, value in (
            ("misspelt", key + "x" if len(key.split(".")[-1]) < 4 else key[:-1] + "q", 1),
            ("of the wrong type", key, [{"a": "b"}]),
        ):
            with tally.case(f"{key} {what}"):
                table = json.loads(json.dumps(base))
                *above, last = path.split(".")
                inner = table
                for part in above:
                    inner = inner.setdefault(part, {})
                inner[last] = value
                refuses(partial(Config.parse, table), "should", *(["did you mean"] if what == "misspelt" else []))
    for key, value in RANGES:
        with tally.case(f"{key}={value}"):
            refuses(lambda key=key, value=value: prepare(Config.load(None, [f"{key}={value}"])), key)
    tally.figures = f"{len(cases)} keys"


RANGES: list[tuple[str, Any]] = [
    ("seed", -1),
    ("rounds", 0),
    ("participation", 0.0),
    ("participation", 1.5),
    ("eval_every", 0),
    ("data.clients", 0),
    ("data.clusters", 0),
    ("data.alpha", 0.0),
    ("data.samples", 0),
    ("data.drift_share", 0.0),
    ("local.lr", -0.1),
    ("local.batch", 0),
    ("local.epochs", 0),
    ("local.momentum", -1.0),
    ("method.k", 0),
    ("method.k", 25),
    ("engine.chunk", 0),
    ("engine.workers", 0),
    ("engine.clip_updates", 0.0),
    ("checkpoint.every", -1),
    ("checkpoint.keep", 1),
    ("attack.share", 1.0),
    ("attack.scale", 0.0),
    ("privacy.clip", 0.0),
    ("privacy.noise_multiplier", -1.0),
    ("privacy.delta", 1.0),
    ("rounds", "nan"),
    ("local.lr", "nan"),
    ("local.lr", "inf"),
]
