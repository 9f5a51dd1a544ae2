"""A trained run, to be used: which model each client has, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.config import GIVEN, Config
from clusterfl.config.errors import choice
from clusterfl.data.population import Population
from clusterfl.data.source import to_float
from clusterfl.data.user_data import pixels_or_floats
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.wrappers.attack import AttackConfig
from clusterfl.errors import ConfigError, DataError
from clusterfl.evaluate.served import personal_models
from clusterfl.models import build_model
from clusterfl.runs.checkpoint import newest_snapshot
from clusterfl.runs.folder import SUMMARY, summary_of
from clusterfl.runs.model_files import load_models, read_manifest
from clusterfl.runs.run import digest_of, task_of
from clusterfl.runs.setup import prepare
from clusterfl.task import Task
from clusterfl.tree import Tree, row


def load(
    folder: str | Path,
    *,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    data_root: str | Path | None = None,
) -> Trained:
    """A finished run, ready to predict: ``load("runs/mine").predict("hospital-07", x)``.

    A run that was started from Python with a module or clients of its own asks for the same again: the module always,
    the population where clients have personal models.
    """
    place = Path(folder)
    if not (place / "config.toml").exists():
        raise ConfigError(f"{place} should be the folder of a run, with a config.toml")
    if summary_of(place) is None:
        raise ConfigError(f"{place} should be a finished run, with a {SUMMARY}; go on with: clusterfl resume {place}")
    config, manifest = Config.load(place / "config.toml", data_root=data_root), read_manifest(place)
    return Trained(place, config, manifest, population, given_task(place, config, model, manifest["classes"]))


def given_task(folder: Path, config: Config, model: nn.Module | Task | None, classes: int) -> Task | None:
    """What a run with a module from Python learns, given that module again; None: its config names the model."""
    if config.model.name != GIVEN:
        return None
    if model is None:
        raise ConfigError(f"{folder} was run with a module from Python and should be used there, with model=the module")
    tasks = [model] if isinstance(model, Task) else [task_of(model, classes), task_of(model, classes, "given")]
    task = next((t for t in tasks if digest_of(t) == config.model.params.get("sha256")), None)
    if task is None:
        name = type(tasks[0].module).__name__
        raise ConfigError(f"model={name} should be the module that {folder} was run with")
    return task


@dataclass(frozen=True)
class Trained:
    """A finished run: its clients by name, the model that each one really uses, and what that answers."""

    folder: Path
    config: Config = field(repr=False)
    manifest: dict[str, Any] = field(repr=False)
    population: Population | None = field(default=None, repr=False)
    task: Task | None = field(default=None, repr=False)  # of a module from Python
    _trees: dict[str, Tree] = field(default_factory=dict, repr=False)

    @property
    def clusters(self) -> dict[str, int]:
        """Each client's cluster, by name; admitted unseen ones last."""
        summary: dict[str, Any] = json.loads((self.folder / SUMMARY).read_text(encoding="utf-8"))
        return {**summary["assignments"], **summary["unseen_assignments"]}

    @property
    def classes(self) -> int:
        """0: the models answer numbers."""
        return int(self.manifest["classes"])

    @property
    def class_names(self) -> tuple[str, ...] | None:
        names = self.manifest.get("class_names")
        return None if names is None else tuple(names)

    @property
    def personal(self) -> bool:
        """Whether clients adapt their cluster's model before they use it."""
        return bool(self.manifest["personal"])

    def cluster_of(self, client: str) -> int:
        return self.clusters[choice("client", client, self.clusters, "a client of the run")]

    def tree(self, client: str) -> Tree:
        """The weights that a client really uses, its personal ones where the method has them."""
        if client not in self._trees:
            cluster = self.cluster_of(client)
            if self.personal:
                self._trees.update(self.personal_trees([client]))
            else:
                self._trees[client] = load_models(self.folder)[cluster]
        return self._trees[client]

    def personal_trees(self, clients: Sequence[str]) -> Iterator[tuple[str, Tree]]:
        """(client, its weights): made from the last checkpoint as the run's own evaluation made them."""
        if self.config.method.mixture:
            name = self.config.method.name
            raise ConfigError(f"method={name!r} gives clients a mixture of K models, not one; export them by cluster")
        if self.config.engine.name == "flower":
            raise ConfigError(
                f"client={clients[0]!r} has its personal model on its own node, in serving/ (`clusterfl federate "
                "publish` puts it there); here are only the clusters' models, by --cluster"
            )
        population = self._clients()
        place = {name: i for i, name in enumerate(population.names[: population.clients])}
        for client in clients:
            if client not in place:
                raise ConfigError(
                    f"client={client!r} should be one that trained; `clusterfl admit {self.folder} --out DIR` writes "
                    "the models of others"
                )
        snapshot, method = newest_snapshot(self.folder, self.config.method, population.clients), self.config.method
        if snapshot.data != population.digest:
            raise DataError(f"the clients' data should be what {self.folder} was trained on, but it has changed")
        quiet = {"engine": EngineConfig("serial"), "attack": AttackConfig()}
        setup = prepare(self.config.model_copy(update=quiet), population.at(snapshot.round), self.task)
        key = keys.fold_in(keys.key(self.config.seed), "evaluate", snapshot.round)
        ids = torch.tensor([place[client] for client in clients])
        with setup.engine() as engine:
            engine.set_states(snapshot.kept)
            served = method.serve(snapshot.state, ids)
            for some, models in personal_models(engine, method, served, ids, key, snapshot.round):
                for j, i in enumerate(some.tolist()):
                    yield population.names[i], row(models, j)

    def _clients(self) -> Population:
        if self.population is not None:
            return self.population
        if self.config.data.source == GIVEN:
            raise ConfigError(
                f"{self.folder} was run on clients from Python: its personal models need population=… the same clients"
            )
        return self.config.population()

    def module(self, client: str) -> nn.Module:
        """The client's model, in evaluation mode."""
        return self.module_of(self.tree(client))

    def module_of(self, tree: Tree) -> nn.Module:
        """A module with these weights, in evaluation mode."""
        if self.task is not None:
            module = deepcopy(self.task.module)
        else:
            shape, model = tuple(self.manifest["input_shape"]), self.config.model
            with torch.device("meta"):  # no memory for weights until those that count are there
                outputs = self.manifest.get("outputs", self.classes)
                module = build_model(model.name, shape, outputs, regression=not self.classes, **model.params)
        module.load_state_dict(tree, assign=True)
        return module.eval()

    def samples(self, x: Any) -> Tensor:
        """Samples as the model takes them: bytes are scaled as the run's pixels were; one sample is a batch of one."""
        array = np.asarray(x)
        shape, pixels = tuple(self.manifest["input_shape"]), self.manifest.get("pixels")
        if array.shape == shape or (pixels and array.shape == shape[1:]):
            array = array[None]
        if array.dtype == np.uint8 and pixels:
            ready = to_float(pixels_or_floats(array), pixels["scaled"], pixels["white"])
        else:
            ready = torch.from_numpy(array.astype(self.manifest.get("dtype", "float32")))
        if tuple(ready.shape[1:]) != shape:
            raise DataError(f"samples of shape {tuple(ready.shape[1:])} should be like the run's, {shape}")
        return ready

    def outputs(self, client: str, x: Any) -> Tensor:
        """What the client's model answers, as it is: one logit per class, or numbers."""
        with torch.no_grad():
            answer: Tensor = self.module(client)(self.samples(x))
        return answer

    def probabilities(self, client: str, x: Any) -> Tensor:
        """``[n, classes]``"""
        if not self.classes:
            raise ConfigError("probabilities are of classes, but this run learnt numbers; predict() has them")
        return torch.softmax(self.outputs(client, x), dim=-1)

    def predict(self, client: str, x: Any) -> npt.NDArray[Any]:
        """The class of each sample: its name, or its number where classes have no names. Or the numbers that it learnt:
        one per sample, or as many as a sample has."""
        answers = self.outputs(client, x)
        if not self.classes:
            single = answers.dim() == 2 and answers.shape[1] == 1
            return (answers.squeeze(1) if single else answers).numpy()
        best = answers[:, : self.classes].argmax(1).numpy()
        return best if self.class_names is None else np.array(self.class_names)[best]
