"""``details.json``: what a report shows beyond the tables: sizes, labels, every model on every client, confusions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

import clusterfl
from clusterfl import keys
from clusterfl.cohort import one_thread
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.evaluate.shared import EVAL_BATCH
from clusterfl.loop import Simulation
from clusterfl.methods.md_icfl import MDICFL
from clusterfl.record import Outcome
from clusterfl.runs.files import write_whole
from clusterfl.tree import row

DETAILS = "details.json"
PSEUDO = "pseudo.safetensors"
CELLS = 1_000_000  # entries of a table by client that are still written
CLASSES = 100  # a confusion matrix of more is not written
CLUSTERS = 20  # nor are those of more clusters
SHOWN = 2  # pseudo samples of a class
SAMPLES = 5_000  # of a cluster's test data, evenly spaced, that its confusion matrix counts


def write_details(folder: Path, config: Config, simulation: Simulation, outcome: Outcome) -> None:
    found = details(config, simulation, outcome)
    write_whole(folder / DETAILS, (json.dumps(found, separators=(",", ":")) + "\n").encode())


def write_pseudo(folder: Path, simulation: Simulation) -> None:
    """MD-ICFL's pseudo samples ``[K, C, M, …]`` of the last centres, a few of each class, where they are images."""
    method, population = simulation.method, simulation.population
    shape = population.input_shape
    image = len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))
    if not (isinstance(method, MDICFL) and image and population.classes <= CLASSES // 4):
        return
    cohort = simulation.engine.cohort(simulation.ids, keys.fold_in(simulation.root, "pseudo"), simulation.round)
    with torch.no_grad():
        x = method.pseudo(simulation.state, cohort).x
    write_whole(folder / PSEUDO, save({"x": x[:CLUSTERS, :, :SHOWN].contiguous()}))


def details(config: Config, simulation: Simulation, outcome: Outcome) -> dict[str, Any]:
    """Lists are in the order of the summary's assignments, unseen clients last; null where there is no such thing."""
    population, assign = simulation.engine.population, outcome.records[-1].assign
    counts = label_counts(population) if config.privacy.measures else None
    table = outcome.cross
    return {
        "format": 1,
        "version": clusterfl.__version__,
        "config_sha256": config.digest(),
        "personal": outcome.served.personal,
        "train": population.train.sizes.tolist(),
        "test": population.test.sizes.tolist(),
        "labels": None if counts is None or counts.numel() > CELLS else counts.tolist(),
        "cluster_labels": None if counts is None else cluster_labels(counts[: population.clients], assign),
        "cross": None if table is None or table.numel() > CELLS else _rounded(table),
        "confusion": confusion(simulation, outcome) if counts is not None else None,
    }


def label_counts(population: Population) -> Tensor | None:
    """``[N + U, C]``: training samples of each client by class; None where targets are no classes or not here."""
    shards, classes = population.train, population.classes
    if population.elsewhere or shards.y.is_floating_point() or shards.y.dim() != 1 or classes < 1:
        return None
    counts = torch.zeros(len(shards), classes, dtype=torch.int64)
    for ids in shards.pieces():
        owners = torch.arange(len(ids)).repeat_interleave(shards.sizes[ids])
        cells = owners * classes + shards.y[shards.rows_of_all(ids)]
        counts[ids] = cells.bincount(minlength=len(ids) * classes).reshape(-1, classes)
    return counts


def cluster_labels(counts: Tensor, assign: Tensor) -> dict[str, list[int]]:
    return {str(k): counts[assign == k].sum(dim=0).tolist() for k in assign.unique().tolist()}


def confusion(simulation: Simulation, outcome: Outcome) -> dict[str, Any] | None:
    """By cluster, ``[true class][answer]``: its model, before clients personalise it, on its clients' test data."""
    engine, assign = simulation.engine, outcome.records[-1].assign
    classes, found = engine.population.classes, outcome.records[-1].assign.unique().tolist()
    if classes > CLASSES or len(found) > CLUSTERS:
        return None
    test = engine.population.test
    tables, all_counted = {}, True
    for k in found:
        rows = test.rows_of_all(test.same[(assign == k).nonzero().flatten()].unique()).unique()
        step = max(1, -(-len(rows) // SAMPLES))
        all_counted, rows = all_counted and step == 1, rows[::step]
        theta, true = row(outcome.served.models, k), test.y[rows]
        with one_thread(), torch.no_grad():
            answers = [engine.task.logits(theta, test.x[piece]).argmax(1) for piece in rows.split(EVAL_BATCH)]
        answered = torch.cat(answers).clamp(max=classes - 1)  # a model may have outputs for which there is no class
        tables[str(k)] = (true * classes + answered).bincount(minlength=classes**2).reshape(classes, classes).tolist()
    return {"counts": tables, "all": all_counted}


def _rounded(table: Tensor) -> list[list[float | None]]:
    return [[None if v != v else round(v, 6) for v in row] for row in table.tolist()]
