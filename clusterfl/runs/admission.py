"""New clients for a trained run: its method admits them, as it would on real devices."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.config.errors import naming
from clusterfl.data.population import Population
from clusterfl.data.registry import is_own
from clusterfl.data.scenario import build
from clusterfl.data.user_tables import columns_behind
from clusterfl.engines.wrappers.attack import AttackConfig
from clusterfl.errors import ConfigError, DataError
from clusterfl.evaluate.served import evaluate, personal_models
from clusterfl.method import NotDefined
from clusterfl.runs.checkpoint import newest_snapshot
from clusterfl.runs.data_card import classes_of, read_data_card
from clusterfl.runs.folder import exclusive
from clusterfl.runs.ledger import charge_to
from clusterfl.runs.model_files import file_name
from clusterfl.runs.setup import naming_clients, prepare
from clusterfl.runs.trained import given_task
from clusterfl.task import Task
from clusterfl.tree import row


def admit(
    run: str | Path,
    data: str | Population | None = None,
    *,
    out: str | Path | None = None,
    model: nn.Module | Task | None = None,
    data_root: str | Path | None = None,
) -> dict[str, Any]:
    """Cluster, accuracy and (in ``out``) personal model of every new client, by name.

    ``data`` is ``folder:PATH``, ``table:PATH``, ``FILE.py:FUNCTION`` or a population; without it these are the run's
    own unseen clients. A run with a module from Python asks for the same ``model`` again.
    """
    folder = Path(run)
    if not (folder / "config.toml").exists():
        raise ConfigError(f"{folder} should be the folder of a run, with a config.toml")
    config, card = Config.load(folder / "config.toml", data_root=data_root), read_data_card(folder)
    snapshot = newest_snapshot(folder, config.method, config.data.clients if card is None else len(card["clients"]))
    population, ids = newcomers(config, data, card)
    task = given_task(folder, config, model, population.classes)
    method, root = config.method, keys.key(config.seed)
    if out is not None and method.mixture:
        raise ConfigError(f"out={out} should be unset: clients of {method.name} use a mixture of K models, not one")
    if data is not None:  # who lies was drawn among the run's clients
        config = config.model_copy(update={"attack": AttackConfig()})
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming_clients(population))
        engine = stack.enter_context(prepare(config, population, task, start=False).engine())
        if config.privacy.on:  # newcomers of other data are other clients, whose numbers begin at 0 again
            stack.enter_context(exclusive(folder))
        ledger = folder / ("privacy.log" if data is None else "privacy-admitted.log")
        cohort = engine.cohort(ids, charge_to(engine, ledger, keys.fold_in(root, "admit")), snapshot.round)
        try:
            served = method.admit(snapshot.state, cohort)
        except NotDefined as e:
            raise ConfigError(f"method={method.name!r} should be one that admits clients: {e}") from e
        key = keys.fold_in(root, "unseen")
        scores = evaluate(engine, method, served, ids, key, snapshot.round) if config.privacy.measures else None
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            for some, models in personal_models(engine, method, served, ids, key, snapshot.round):
                for j, i in enumerate(some.tolist()):
                    tree = {n: t.contiguous() for n, t in row(models, j).items()}
                    save_file(tree, Path(out) / f"{file_name(population.names[i])}.safetensors")
        spent = engine.spent()
    metric = engine.task.metric
    values = [] if scores is None else scores.of(metric.name).tolist()
    known = {} if scores is None else {j: v for j, v in enumerate(values) if scores.samples[j] > 0}
    truth = population.truth
    clients = {
        population.names[i]: {
            "cluster": int(served.clusters[j]),
            metric.name: known.get(j),
            "samples": int(population.train.sizes[i]),
            "true_cluster": None if truth is None else int(truth[i]),
        }
        for j, i in enumerate(ids.tolist())
    }
    return {
        "method": method.name,
        "round": snapshot.round,
        "metric": metric.name,
        "better": metric.better,
        f"{metric.name}_mean": sum(known.values()) / len(known) if known else None,
        "privacy": None if spent is None else asdict(spent),
        "clients": clients,
        "notes": list(population.notes) if data is not None else [],
    }


def newcomers(
    config: Config, data: str | Population | None, card: dict[str, Any] | None
) -> tuple[Population, torch.Tensor]:
    """The new clients and their ids: those of ``data``, or the run's own unseen ones.

    New data is read as the run's was: the same columns in the same order, and the same classes.
    """
    if data is None:
        population = config.population()
        if not population.unseen:
            raise ConfigError("data.unseen=0: the run has no unseen clients; name new ones with --data folder:PATH")
        return population, torch.arange(population.clients, len(population.train))
    population = data if isinstance(data, Population) else read_newcomers(config, data, card)
    if card is not None:
        check_alike(population, card)
    if config.data.indicators:  # the run's own public samples, which its clients know
        population = replace(population, indicators=config.population().indicators)
    return population, torch.arange(len(population.train))


def check_alike(population: Population, card: dict[str, Any]) -> None:
    """New clients have the run's samples and classes."""
    shape, classes = tuple(card["input_shape"]), classes_of(card)
    mine = population.class_names or tuple(map(str, range(population.classes)))
    if population.input_shape != shape:
        raise DataError(f"new clients' samples of shape {population.input_shape} should be like the run's, {shape}")
    if mine != classes:
        raise DataError(
            f"new clients' classes ({', '.join(mine[:5])}, …) should be the run's; class_names={list(classes)[:10]}"
        )


def read_newcomers(config: Config, data: str, card: dict[str, Any] | None) -> Population:
    """A folder or table of new clients."""
    if not is_own(data):
        raise ConfigError(f"data={data!r} should be folder:PATH, table:PATH or FILE.py:FUNCTION")
    table = data.startswith("table:")
    features = card["feature_names"] if table and card is not None else None
    categories = {name: tuple(words) for name, words in (card or {}).get("categories", {}).items()}
    natural = replace(
        config.data,
        source=data,
        split="natural",
        shift="none",
        clients=0,
        unseen=0,
        test="own",
        indicators=0,
        drift_round=None,
        client_column=config.data.client_column if table else None,
        label_column=config.data.label_column if table else None,
        feature_columns=None if features is None else columns_behind(features, categories),
        categorical=config.data.categorical if table else None,
    )
    key = keys.fold_in(keys.key(config.seed), "newcomers")
    with naming("data"):
        known = None if card is None or config.task.regression else classes_of(card)
        return build(natural, key, classes=known, categories=categories, regression=config.task.regression)
