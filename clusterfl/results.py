"""What a run leaves behind. Everything but the fields called ``seconds`` is the same each time it is run.

A folder holds ``config.toml``, ``summary.json``, ``rounds.jsonl``, ``metrics.parquet``,
``assignments.parquet`` and ``models/`` (docs/results.md).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from clusterfl.config import Config, ModelConfig
from clusterfl.data.population import Population
from clusterfl.errors import ClusterflError, DataError
from clusterfl.files import append, read_some, write_whole
from clusterfl.loop import Outcome, Record
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.tree import Tree, row

MANIFEST = "manifest.json"
MOST_MANIFEST = 1 << 28  # bytes


def write_run(folder: Path, config: Config, population: Population, outcome: Outcome) -> dict[str, Any]:
    """Writes a finished run; returns its summary, which is written last: a folder that has one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)
    write(folder / "config.toml", config.toml().encode())
    lines = [json.dumps(round_row(r, population)) + "\n" for r in outcome.records]
    write(folder / "rounds.jsonl", "".join(lines).encode())
    write_table(folder / "metrics.parquet", metrics_table(outcome, population.clients))
    write_table(folder / "assignments.parquet", assignments_table(outcome.records, population))
    write_models(folder / "models", config.model, population, outcome)
    found = summary(config, population, outcome)
    write(folder / "summary.json", (json.dumps(found, indent=2) + "\n").encode())
    return found


class RoundsFile:
    """``rounds.jsonl`` as it grows: one line a round, there as soon as the round is over."""

    def __init__(self, folder: Path, population: Population) -> None:
        self.path, self.population = folder / "rounds.jsonl", population

    def restart(self, records: Sequence[Record]) -> None:
        """Only the rounds of a run that is taken up again."""
        write(self.path, "".join(self._line(r) for r in records).encode())

    def add(self, record: Record) -> None:
        append(self.path, self._line(record).encode(), sync=False)  # a resume writes it anew

    def _line(self, record: Record) -> str:
        return json.dumps(round_row(record, self.population)) + "\n"


def round_row(record: Record, population: Population) -> dict[str, Any]:
    """A line of ``rounds.jsonl``."""
    known = ~record.accuracy.isnan()
    truth = population.at(record.round).truth
    right = None if truth is None else clustering(record.assign, truth[: len(record.assign)])
    return plain(
        {
            "round": record.round,
            "accuracy_mean": float(record.accuracy[known].mean()),
            "loss_mean": float(record.loss[known].mean()),
            "ari": right and right.ari,
            "nmi": right and right.nmi,
            "clusters": int(record.assign.unique().numel()),
            "moved": record.moved,
            "bytes_up": record.bytes_up,
            "bytes_down": record.bytes_down,
            "rejected": record.rejected,
            "epsilon": record.epsilon,
            "logged": record.logged,
            "seconds": record.seconds,
        }
    )


def summary(config: Config, population: Population, outcome: Outcome) -> dict[str, Any]:
    """``summary.json``: the run in one object, null where a figure has no meaning."""
    right, unseen = outcome.clusters, outcome.unseen
    assign = outcome.records[-1].assign.tolist()
    admitted = [] if outcome.unseen_assign is None else outcome.unseen_assign.tolist()
    return plain(
        {
            "method": outcome.method.name,
            "seed": config.seed,
            "rounds": outcome.records[-1].round,
            "clients": population.clients,
            "k": outcome.served.k,
            "accuracy_mean": outcome.accuracy.mean,
            "accuracy_weighted": outcome.accuracy.weighted,
            "accuracy_std": outcome.accuracy.std,
            "accuracy_bottom5": outcome.accuracy.bottom5,
            "accuracy_top5_rounds": outcome.top5_rounds,
            "global_accuracy": outcome.global_accuracy,
            "global_weighted": outcome.global_weighted,
            "f1_micro": outcome.f1.weighted,
            "f1_macro": outcome.f1.mean,
            "ari": right and right.ari,
            "nmi": right and right.nmi,
            "matched": right and right.matched,
            "soft_truth": population.soft_truth,
            "clusters_found": outcome.clusters_found,
            "settled": settled(outcome.records) if outcome.method.clustered else None,
            "true_clusters": population.true_clusters,
            "intra_accuracy": outcome.intra,
            "inter_accuracy": outcome.inter,
            "unseen": population.unseen,
            "unseen_accuracy": None if unseen is None else float(unseen.mean()),
            "bytes_up": outcome.bytes_up,
            "bytes_down": outcome.bytes_down,
            "seconds": outcome.seconds,
            "rejected": sum(r.rejected for r in outcome.records),
            **under_attack(config, population, outcome.records[-1]),
            "privacy": None if outcome.spent is None else dataclasses.asdict(outcome.spent),
            "data": population.name,
            "data_sha256": population.digest,
            "notes": list(population.notes),
            "assignments": {str(i): k for i, k in enumerate(assign)},
            "unseen_assignments": {str(population.clients + j): k for j, k in enumerate(admitted)},
        }
    )


def settled(records: Sequence[Record]) -> int:
    """The last round in which a client changed its cluster (0: none ever did)."""
    return max((r.round for r in records if r.moved > 0), default=0)


def under_attack(config: Config, population: Population, last: Record) -> dict[str, Any]:
    """Who lied, and how the others fared: on the whole, in the true cluster that fared worst, and in ARI."""
    liars = config.attackers(population)
    honest = torch.ones(population.clients, dtype=torch.bool)
    honest[liars] = False
    truth = population.at(last.round).truth
    groups = last.assign if truth is None else truth[: population.clients]
    known = honest & ~last.accuracy.isnan()
    means = [float(last.accuracy[known & (groups == k)].mean()) for k in groups[known].unique()]
    right = None if truth is None else clustering(last.assign[honest], groups[honest])
    return {
        "attackers": liars.tolist(),
        "accuracy_honest": float(last.accuracy[known].mean()),
        "accuracy_worst_cluster": min(means, default=math.nan),
        "ari_honest": right and right.ari,
    }


def metrics_table(outcome: Outcome, clients: int) -> pa.Table:
    """One row per round, client and metric; unseen clients have ``unseen_accuracy`` after the last round."""
    parts: list[tuple[int, Tensor, Tensor, str, Tensor]] = []
    for r in outcome.records:
        ids = torch.arange(len(r.assign))
        if r.measured:
            parts += [(r.round, ids, r.assign, "accuracy", r.accuracy), (r.round, ids, r.assign, "loss", r.loss)]
    if outcome.unseen is not None and outcome.unseen_assign is not None:
        ids = clients + torch.arange(len(outcome.unseen))
        last = outcome.records[-1].round
        parts.append((last, ids, outcome.unseen_assign, "unseen_accuracy", outcome.unseen))
    return pa.table(
        {
            "round": pa.array([r for r, ids, *_ in parts for _ in ids], pa.int64()),
            "client": pa.array(_numbers([ids for _, ids, *_ in parts]), pa.int64()),
            "cluster": pa.array(_numbers([a for _, _, a, _, _ in parts]), pa.int64()),
            "metric": pa.array([m for _, ids, _, m, _ in parts for _ in ids], pa.string()),
            "value": pa.array(_numbers([v for *_, v in parts]), pa.float64()),
        }
    )


def assignments_table(records: Sequence[Record], population: Population) -> pa.Table:
    """One row per round (0 is the start) and client."""
    n = population.clients
    truths = [population.at(r.round).truth for r in records]
    real = [k for truth in truths for k in ([None] * n if truth is None else truth[:n].tolist())]
    return pa.table(
        {
            "round": pa.array([r.round for r in records for _ in range(n)], pa.int64()),
            "client": pa.array([i for _ in records for i in range(n)], pa.int64()),
            "cluster": pa.array(_numbers([r.assign for r in records]), pa.int64()),
            "true_cluster": pa.array(real, pa.int64()),
        }
    )


def _numbers(parts: Sequence[Tensor]) -> Any:
    return torch.cat(list(parts)).numpy() if parts else []


def write_table(path: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write(path, sink.getvalue().to_pybytes())


# -- models ----------------------------------------------------------------------------------------------


def write_models(folder: Path, model: ModelConfig, population: Population, outcome: Outcome) -> None:
    """One safetensors file per cluster, and a manifest that says what they are and checks them."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("cluster-*.safetensors"):
        old.unlink()
    index = outcome.served.index
    clusters = []
    for k in range(outcome.served.k):
        name = f"cluster-{k}.safetensors"
        data = save_tensors({n: t.detach().cpu().contiguous() for n, t in row(outcome.served.models, k).items()})
        write(folder / name, data)
        clients = (index == k).nonzero().flatten().tolist()
        digest = hashlib.sha256(data).hexdigest()
        clusters.append({"cluster": k, "file": name, "sha256": digest, "clients": clients})
    manifest = {
        "format": 1,
        "method": outcome.method.name,
        "model": model.write(),
        "classes": population.classes,
        "input_shape": list(population.input_shape),
        "personal": outcome.served.personal,  # clients adapt these models before they use them
        "clusters": clusters,
    }
    write(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def read_manifest(folder: str | Path) -> dict[str, Any]:
    path = _models(folder) / MANIFEST
    try:
        found: dict[str, Any] = json.loads(read_some(path, MOST_MANIFEST))
        if not {"clusters", "model", "classes", "input_shape"} <= found.keys():
            raise ValueError("it lacks some of its keys")
        if found.get("format", 1) != 1:
            raise ValueError(f"its format is {found['format']}, which another version wrote")
        for entry in found["clusters"]:
            if not (isinstance(entry["cluster"], int) and isinstance(entry["file"], str)):
                raise ValueError("its clusters should have numbers and files")
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError) as e:
        raise DataError(f"{path} should be a manifest that `clusterfl run` wrote, but: {e}") from None
    return found


def load_models(folder: str | Path) -> dict[int, Tree]:
    """The models of a run, by cluster. A file whose SHA-256 is not the manifest's is a DataError."""
    found: dict[int, Tree] = {}
    for entry in read_manifest(folder)["clusters"]:
        path = _models(folder) / Path(entry["file"]).name
        try:
            data = path.read_bytes()
        except OSError as e:
            raise DataError(f"{path} should be there, for the manifest names it, but: {e.strerror}") from None
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            raise DataError(f"{path} should have the SHA-256 of its manifest, but was changed or damaged")
        try:
            found[entry["cluster"]] = load_tensors(data)
        except Exception as e:  # safetensors raises its own kind
            raise DataError(f"{path} should be a safetensors file, but: {e}") from None
    return found


def load_modules(folder: str | Path) -> dict[int, nn.Module]:
    """The models of a run as modules in evaluation mode, by cluster."""
    manifest, trees = read_manifest(folder), load_models(folder)
    try:
        model = ModelConfig.read(manifest["model"])
        shape, classes = tuple(manifest["input_shape"]), manifest["classes"]
        modules: dict[int, nn.Module] = {}
        for k, tree in trees.items():
            with torch.device("meta"):  # no memory for weights until the file's own are there
                module = build_model(model.name, shape, classes, **model.params)
            module.load_state_dict(tree, assign=True)
            modules[k] = module.eval()
    except (ClusterflError, RuntimeError, TypeError, ValueError, ArithmeticError) as e:
        said = " ".join(str(e).split())
        raise DataError(f"{_models(folder) / MANIFEST} should describe the models beside it, but: {said}") from None
    return modules


def _models(folder: str | Path) -> Path:
    """The folder with the manifest, given it or the run's folder."""
    path = Path(folder)
    return path if (path / MANIFEST).exists() else path / "models"


# -- small things ----------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    write_whole(path, data)


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a figure that has no meaning is null."""
    cleaned: dict[str, Any] = _plain(value)
    return cleaned


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
