"""New clients for a trained run: its method admits them, as it would on real devices."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.data.scenario import build
from clusterfl.errors import ConfigError
from clusterfl.evaluate import evaluate, personal_models
from clusterfl.method import NotDefined
from clusterfl.runs.checkpoint import newest_snapshot
from clusterfl.runs.folder import exclusive
from clusterfl.runs.ledger import charge_to
from clusterfl.runs.setup import prepare
from clusterfl.tree import row


def admit_clients(run: Path, data: str | None, out: Path | None, *, data_root: Path | None = None) -> dict[str, Any]:
    """Cluster, accuracy and (in ``out``) personal model of every new client."""
    if not (run / "config.toml").exists():
        raise ConfigError(f"{run} should be the folder of a run, with a config.toml")
    config = Config.load(run / "config.toml", data_root=data_root)
    snapshot = newest_snapshot(run, config.method, config.data.clients)
    population, ids = newcomers(config, data)
    method, root = config.method, keys.key(config.seed)
    if out is not None and method.mixture:
        raise ConfigError(f"out={out} should be unset: clients of {method.name} use a mixture of K models, not one")
    measured = config.privacy.publish_metrics or not config.privacy.on
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(prepare(config, population).engine())
        if config.privacy.on:  # newcomers of other data are other clients, whose numbers begin at 0 again
            stack.enter_context(exclusive(run))
        ledger = run / ("privacy.log" if data is None else "privacy-admitted.log")
        cohort = engine.cohort(ids, charge_to(engine, ledger, keys.fold_in(root, "admit")), snapshot.round)
        try:
            served = method.admit(snapshot.state, cohort)
        except NotDefined as e:
            raise ConfigError(f"method={method.name!r} should be one that admits clients: {e}") from e
        key = keys.fold_in(root, "unseen")
        scores = evaluate(engine, method, served, ids, key, snapshot.round) if measured else None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for some, models in personal_models(engine, method, served, ids, key, snapshot.round):
                for j, i in enumerate(some.tolist()):
                    save_file({n: t.contiguous() for n, t in row(models, j).items()}, out / f"client-{i}.safetensors")
        spent = engine.spent()
    metric = engine.task.metric
    values = [] if scores is None else scores.of(metric.name).tolist()
    known = {} if scores is None else {j: v for j, v in enumerate(values) if scores.samples[j] > 0}
    truth = population.truth
    clients = [
        {
            "client": i,
            "cluster": int(served.index[j]),
            metric.name: known.get(j),
            "samples": int(population.train.sizes[i]),
            "true_cluster": None if truth is None else int(truth[i]),
        }
        for j, i in enumerate(ids.tolist())
    ]
    return {
        "method": method.name,
        "round": snapshot.round,
        "metric": metric.name,
        "better": metric.better,
        f"{metric.name}_mean": sum(known.values()) / len(known) if known else None,
        "privacy": None if spent is None else asdict(spent),
        "clients": clients,
    }


def newcomers(config: Config, data: str | None) -> tuple[Population, torch.Tensor]:
    """The new clients and their ids: those of ``data``, or the run's own unseen ones."""
    if data is None:
        population = config.population()
        if not population.unseen:
            raise ConfigError("data.unseen=0: the run has no unseen clients; name new ones with --data folder:PATH")
        return population, torch.arange(population.clients, len(population.train))
    natural = replace(config.data, source=data, split="natural", shift="none", clients=0, unseen=0, test="own")
    key = keys.fold_in(keys.key(config.seed), "newcomers")
    population = build(natural, key, regression=config.task.regression)
    return population, torch.arange(population.clients)
