"""A run's models for other programs: the ones that clients really use, and a manifest that says all about them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import clusterfl
from clusterfl.config.errors import choice
from clusterfl.errors import ClusterflError, ConfigError
from clusterfl.runs.files import write_whole
from clusterfl.runs.folder import CONFIG
from clusterfl.runs.model_files import MANIFEST, file_name, load_models
from clusterfl.runs.trained import Trained
from clusterfl.tree import Tree


def export(
    trained: Trained,
    to: str | Path,
    *,
    client: str | None = None,
    cluster: int | None = None,
    format: str = "safetensors",
) -> dict[str, Any]:
    """Writes models into the folder ``to`` and returns its manifest.

    By default every client's: one file per client where they are personal, else one per cluster. ``client`` or
    ``cluster`` picks one; a cluster's model is the one before clients adapt it.
    """
    choice("format", format, FORMATS, "a known format")
    folder, entries = Path(to), []
    if (folder / MANIFEST).exists():
        raise ConfigError(f"to={folder} should be a new folder: there are exported models in it")
    if (folder / CONFIG).exists():
        raise ConfigError(f"to={folder} should be a new folder: there is a run in it")
    folder.mkdir(parents=True, exist_ok=True)
    suffix, write = FORMATS[format]
    for name, number, clients, tree in chosen(trained, client, cluster):
        module = trained.module_of(tree)
        data = write(module, trained.samples(torch.zeros(2, *trained.manifest["input_shape"])))
        write_whole(folder / f"{name}.{suffix}", data)
        digest = hashlib.sha256(data).hexdigest()
        entries.append({"file": f"{name}.{suffix}", "sha256": digest, "cluster": number, "clients": clients})
    keep = (
        "method",
        "model",
        "input_shape",
        "dtype",
        "feature_names",
        "pixels",
        "classes",
        "class_names",
        "outputs",
        "categories",
    )
    manifest = {
        "format": 1,
        "files": format,
        "version": clusterfl.__version__,
        **{name: trained.manifest.get(name) for name in keep},
        "personal": trained.personal and cluster is None,
        "architecture": repr(module).splitlines(),
        "models": entries,
    }
    write_whole(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    return manifest


def chosen(trained: Trained, client: str | None, cluster: int | None) -> Iterator[tuple[str, int, list[str], Tree]]:
    """(file's name, cluster, clients, weights) of each model that is asked for."""
    if client is not None and cluster is not None:
        raise ConfigError(f"client={client!r} should be given without cluster={cluster}")
    homes = trained.clusters
    if client is not None:
        yield file_name(client), trained.cluster_of(client), [client], trained.tree(client)
    elif trained.personal and cluster is None:
        known = [*trained.manifest["clients"]]
        for name, tree in trained.personal_trees(known):
            yield file_name(name), homes[name], [name], tree
    else:
        trees = load_models(trained.folder)
        if cluster is not None and cluster not in trees:
            raise ConfigError(f"cluster={cluster} should be one of the run's, 0 to {len(trees) - 1}")
        for k, tree in trees.items():
            if cluster in (None, k):
                yield f"cluster-{k}", k, [name for name, home in homes.items() if home == k], tree


def as_safetensors(module: nn.Module, example: Tensor) -> bytes:
    return save_tensors({n: t.detach().contiguous() for n, t in module.state_dict().items()})


def as_torch(module: nn.Module, example: Tensor) -> bytes:
    """A program of ``torch.export``, which PyTorch runs without the module's class."""
    out = io.BytesIO()
    try:
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, out)
    except Exception as e:  # it raises many kinds
        raise _impossible("torch", e) from e
    return out.getvalue()


def as_onnx(module: nn.Module, example: Tensor) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError("format='onnx' should have onnx installed: pip install onnx onnxscript") from None
    try:
        batch = torch.export.Dim("batch", min=1)
        made = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: batch},),
            input_names=["x"],
            output_names=["y"],
            verbose=False,
        )
        assert made is not None
        return bytes(made.model_proto.SerializeToString())
    except Exception as e:
        raise _impossible("onnx", e) from e


def _impossible(format: str, error: Exception) -> ClusterflError:
    said = " ".join(str(error).split())[:200]
    return ClusterflError(f"format={format!r} should be 'safetensors' for this model, which cannot be traced: {said}")


FORMATS: dict[str, tuple[str, Callable[[nn.Module, Tensor], bytes]]] = {
    "safetensors": ("safetensors", as_safetensors),
    "torch": ("pt2", as_torch),
    "onnx": ("onnx", as_onnx),
}
