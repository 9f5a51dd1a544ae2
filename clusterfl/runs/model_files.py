"""The models of a run as files, one per cluster, and a manifest that says what they are and checks them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from clusterfl.config import ModelConfig
from clusterfl.data.population import Population
from clusterfl.errors import ClusterflError, DataError
from clusterfl.models import build_model
from clusterfl.record import Outcome
from clusterfl.runs.data_card import readings
from clusterfl.runs.files import read_bounded, sync_files, write_whole
from clusterfl.tree import Tree, row

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 28  # bytes


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
        write_whole(folder / name, data, sync=False)
        clients = [population.names[i] for i in (index == k).nonzero().flatten().tolist()]
        digest = hashlib.sha256(data).hexdigest()
        clusters.append({"cluster": k, "file": name, "sha256": digest, "clients": clients})
    sync_files(folder, [str(entry["file"]) for entry in clusters])
    manifest = {
        "format": 1,
        "method": outcome.method.name,
        "model": model.write(),
        **readings(population),
        "clients": list(population.names[: population.clients]),
        "personal": outcome.served.personal,  # clients adapt these models before they use them
        "clusters": clusters,
    }
    write_whole(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def read_manifest(folder: str | Path) -> dict[str, Any]:
    path = _models(folder) / MANIFEST
    try:
        found: dict[str, Any] = json.loads(read_bounded(path, LARGEST_MANIFEST))
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
        outputs = manifest.get("outputs", classes)
        modules: dict[int, nn.Module] = {}
        for k, tree in trees.items():
            with torch.device("meta"):  # no memory for weights until the file's own are there
                module = build_model(model.name, shape, outputs, regression=not classes, **model.params)
            module.load_state_dict(tree, assign=True)
            modules[k] = module.eval()
    except (ClusterflError, RuntimeError, TypeError, ValueError, ArithmeticError) as e:
        said = " ".join(str(e).split())
        raise DataError(f"{_models(folder) / MANIFEST} should describe the models beside it, but: {said}") from None
    return modules


def file_name(client: str) -> str:
    """A client's name as that of a file; two names never share one."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in client).lstrip(".")[:100]
    return plain if plain and plain == client else f"{plain}-{hashlib.sha256(client.encode()).hexdigest()[:8]}"


def _models(folder: str | Path) -> Path:
    """The folder with the manifest, given it or the run's folder."""
    path = Path(folder)
    return path if (path / MANIFEST).exists() else path / "models"
