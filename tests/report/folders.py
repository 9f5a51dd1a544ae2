"""Folders of runs that never ran: any number of clients, rounds and clusters, any names, in an instant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METHOD = 'name = "{method}"\nk = {k}\n'
CONFIG = (
    'seed = {seed}\nrounds = {rounds}\n\n[data]\nsource = "digits"\nclients = {n}\n\n[model]\nname = "mclr"\n\n'
    "[local]\nlr = 0.1\nepochs = 2\nbatch = 20\n\n[method]\n" + METHOD
)


def made(
    folder: Path,
    *,
    clients: int = 12,
    rounds: int = 5,
    k: int = 3,
    names: Sequence[str] | None = None,
    truth: bool = True,
    method: str = "ifca",
    seed: int = 0,
    data: str = "digits, 3 clusters by rotate",
    classes: Sequence[str] = ("rose", "tulip"),
    level: float = 0.8,
) -> Path:
    """Clients begin anywhere and are at home from round 1 on; the metric rises by round."""
    folder.mkdir(parents=True)
    n, rng = clients, np.random.default_rng(seed)
    named = list(names) if names is not None else [f"client-{i}" for i in range(n)]
    home = np.arange(n) % k
    assign = np.stack([rng.integers(0, k, n), *[home] * rounds])
    rise = np.linspace(0.3, level, rounds + 1)[:, None]
    values = np.clip(rise + 0.05 * rng.standard_normal((rounds + 1, n)), 0.0, 1.0)
    (folder / "config.toml").write_text(CONFIG.format(seed=seed, rounds=rounds, n=n, k=k, method=method))
    with (folder / "rounds.jsonl").open("w") as f:
        for t in range(rounds + 1):
            f.write(json.dumps(_row(t, values[t], assign, truth)) + "\n")
    _parquet(folder, values, assign, home if truth else None)
    write_json(folder / "details.json", _details(n, k, values[-1], home, rng, classes))
    summary = {
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "clients": n,
        "k": k,
        "accuracy_mean": float(values[-1].mean()),
        "accuracy_std": float(values[-1].std()),
        "accuracy_bottom5": float(np.sort(values[-1])[:5].mean()),
        "global_accuracy": float(values[-1].mean()),
        "ari": 1.0 if truth else None,
        "soft_truth": False,
        "clusters_found": k,
        "settled": 1,
        "true_clusters": k if truth else None,
        "unseen": 0,
        "unseen_accuracy": None,
        "bytes_up": 1000 * rounds,
        "bytes_down": 3000 * rounds,
        "seconds": 0.5 * rounds,
        "rejected": 0,
        "attackers": [],
        "privacy": None,
        "data": data,
        "data_sha256": "d" * 64,
        "notes": [],
        "class_names": list(classes),
        "assignments": dict(zip(named, home.tolist(), strict=True)),
        "unseen_assignments": {},
    }
    write_json(folder / "summary.json", summary)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _row(t: int, values: np.ndarray, assign: np.ndarray, truth: bool) -> dict[str, Any]:
    return {
        "round": t,
        "accuracy_mean": float(values.mean()),
        "loss_mean": 2.0 / (t + 1),
        "ari": (1.0 if t else 0.1) if truth else None,
        "nmi": None,
        "clusters": len(np.unique(assign[t])),
        "moved": float((assign[t] != assign[max(t - 1, 0)]).mean()),
        "bytes_up": 1000 * t,
        "bytes_down": 3000 * t,
        "rejected": 1 if t == 2 else 0,
        "epsilon": None,
        "logged": {"margin": 0.1 * t},
        "seconds": 0.5,
    }


def _parquet(folder: Path, values: np.ndarray, assign: np.ndarray, home: np.ndarray | None) -> None:
    rounds, n = values.shape
    t, i = np.repeat(np.arange(rounds), n), np.tile(np.arange(n), rounds)
    true = pa.nulls(rounds * n, pa.int64()) if home is None else pa.array(np.tile(home, rounds))
    table = {"round": t, "client": i, "cluster": assign.reshape(-1), "true_cluster": true}
    pq.write_table(pa.table(table), folder / "assignments.parquet")
    metrics = {
        "round": t,
        "client": i,
        "cluster": assign.reshape(-1),
        "metric": ["accuracy"] * (rounds * n),
        "value": values.reshape(-1),
    }
    pq.write_table(pa.table(metrics), folder / "metrics.parquet")


def _details(n: int, k: int, final: np.ndarray, home: np.ndarray, rng: Any, classes: Sequence[str]) -> dict[str, Any]:
    cross = 0.2 * rng.random((n, k))
    cross[np.arange(n), home] = final
    mix = {str(j): rng.integers(1, 50, len(classes)).tolist() for j in range(k)}
    confusion = {str(j): rng.integers(0, 9, (len(classes), len(classes))).tolist() for j in range(k)}
    return {
        "format": 1,
        "version": "0.1.0",
        "config_sha256": "c" * 64,
        "personal": False,
        "train": rng.integers(10, 90, n).tolist(),
        "test": [20] * n,
        "labels": None,
        "cluster_labels": mix,
        "cross": cross.round(6).tolist(),
        "confusion": {"counts": confusion, "all": True},
    }
