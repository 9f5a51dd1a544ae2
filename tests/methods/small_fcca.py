"""FCCA at a size that tests can run."""

from __future__ import annotations

import torch

from clusterfl import keys
from clusterfl.cohort import Cohort
from clusterfl.data import DataConfig, build
from clusterfl.data.population import Population
from clusterfl.engines import Serial
from clusterfl.methods.fcca import FCCA, FCCAState
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.task import Task

LOCAL = SGD(lr=0.1, batch=10)


SMALL = {"k": 2, "local": LOCAL, "flow_steps": 2, "flow_batch": 16, "blocks": 2, "hidden": 8, "draws": 16}


def fcca(**params: object) -> FCCA:
    return FCCA(**{**SMALL, **params})  # type: ignore[arg-type]


def start(method: FCCA, engine: Serial) -> tuple[FCCAState, Cohort]:
    ids = torch.arange(engine.clients)
    state = method.init(engine.task, engine.cohort(ids, keys.key(1)), keys.key(7))
    return state, engine.cohort(ids, keys.key(3))


def digits(seed: int, **params: object) -> tuple[Task, Population]:
    config = DataConfig(**{"clients": 12, "clusters": 3, "shift": "permute_labels", "samples": 100, **params})  # type: ignore[arg-type]
    population = build(config, keys.key(seed))
    return Task(build_model("mlp", population.input_shape, 10, widths=(64,)), 10), population
