"""Every method with settings that make it quick on the conformance suite's small population."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterfl.method import Method
from clusterfl.methods import IFCA, METHODS
from clusterfl.parts.local import SGD

SETTLED = {"kin": 6}  # its trial of groups, of 2 rounds, may go on for thrice as many
LOCAL = SGD(lr=0.1, batch=10, epochs=1)
SPLITTING: dict[str, object] = {"start_round": 1, "r1": 10.0, "r2": 0.0, "gap": None}  # a cut in every round
SETTINGS: dict[str, dict[str, object]] = {
    "ifca": {"k": 2},
    "fesem": {"k": 2},
    "fedds": {"k": 2, "warmup": 1},
    "feddsmic": {"k": 2, "warmup": 1},
    "fcca": {"k": 2, "warmup": 1, "flow_steps": 3, "blocks": 2, "hidden": 8, "draws": 16},
    "kin": {"trial": 2},
    "md-icfl": {"k": 2, "samples": 2, "iterations": 5, "warmup": 0},
    "hypcluster": {"k": 2},
    "pfa": {"k": 2, "group_round": 1},
    "robust-tkm": {"k": 2, "erm_epochs": 3},
    "cfl": SPLITTING,
    "fl-hc": {"k": 2, "start_round": 1},
    "pacfl": {"k": 2},
    "fedem": {"k": 2},
    "fedrc": {"k": 2},
    "fedgwc": {"losses": 3},
    "clove": {"k": 2},
    "flux": {"least_rounds": 2, "flat": 1.0},
    "kmeans": {"k": 2},
    "awcfl": {"base": IFCA(k=2, local=LOCAL)},
    "mcfl": {"base": IFCA(k=2, local=LOCAL)},
}


def small_method(name: str, local: SGD = LOCAL, **more: Any) -> Method[Any]:
    cls = METHODS[name]
    settings: dict[str, Any] = {**SETTINGS.get(name, {}), **more}
    if "local" in cls.__dataclass_fields__:  # type: ignore[attr-defined]
        return cls(local=local, **settings)
    return cls(**{**settings, "base": replace(settings["base"], local=local)})
