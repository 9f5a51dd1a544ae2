"""New clients for a trained run: its method admits them, as it would on real devices."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from clusterfl import keys
from clusterfl.cohort import Spent
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.engines.wrappers.attack import AttackConfig
from clusterfl.engines.wrappers.charges import Charge
from clusterfl.errors import ConfigError
from clusterfl.evaluate.served import evaluate, personal_models
from clusterfl.method import Method, NotDefined
from clusterfl.parts.gaussian import epsilon_of, multiplier
from clusterfl.runs.checkpoint import newest_snapshot
from clusterfl.runs.data_card import read_data_card
from clusterfl.runs.folder import exclusive
from clusterfl.runs.ledger import LedgerFile, charge_to
from clusterfl.runs.model_files import file_name
from clusterfl.runs.newcomers import newcomers
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
    own unseen clients. Clients may come without labels where the method can place them by their inputs. A run with a
    module from Python asks for the same ``model`` again.
    """
    folder = Path(run)
    if not (folder / "config.toml").exists():
        raise ConfigError(f"{folder} should be the folder of a run, with a config.toml")
    config, card = Config.load(folder / "config.toml", data_root=data_root), read_data_card(folder)
    snapshot = newest_snapshot(folder, config.method, config.data.clients if card is None else len(card["clients"]))
    population, ids, labelled = newcomers(config, data, card)
    task = given_task(folder, config, model, population.classes)
    method, root = admitting(config.method, labelled), keys.key(config.seed)
    if out is not None and method.mixture:
        raise ConfigError(f"out={out} should be unset: clients of {method.name} use a mixture of K models, not one")
    if data is not None:  # who lies was drawn among the run's clients
        config = config.model_copy(update={"attack": AttackConfig()})
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming_clients(population))
        engine = stack.enter_context(prepare(config, population, task, start=False).engine())
        own, others = method.spent(), data is not None
        if config.privacy.on or (own is not None and others):
            stack.enter_context(exclusive(folder))
        # newcomers of other data are other clients, whose numbers begin at 0 again, and their noise is other noise
        ledger = folder / ("privacy-admitted.log" if others else "privacy.log")
        key = charge_to(engine, ledger, keys.fold_in(root, "admit"))
        if others and (config.privacy.on or own is not None):
            key = keys.fold_in(key, population.digest)
        if others and own is not None:
            own = charged_by_name(folder / "privacy-own.log", config.digest(), population, own)
        cohort = engine.cohort(ids, key, snapshot.round)
        try:
            served = method.admit(snapshot.state, cohort)
        except NotDefined as e:
            raise ConfigError(f"method={method.name!r} should be one that admits clients: {e}") from e
        key = keys.fold_in(root, "unseen")
        measured = labelled and config.privacy.measures
        scores = evaluate(engine, method, served, ids, key, snapshot.round) if measured else None
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            for some, models in personal_models(engine, method, served, ids, key, snapshot.round):
                for j, i in enumerate(some.tolist()):
                    tree = {n: t.contiguous() for n, t in row(models, j).items()}
                    save_file(tree, Path(out) / f"{file_name(population.names[i])}.safetensors")
        spent = engine.spent() or own
    metric = engine.task.metric
    values = [] if scores is None else scores.of(metric.name).tolist()
    known = {} if scores is None else {j: v for j, v in enumerate(values) if scores.samples[j] > 0}
    truth, either = population.truth, served.either()
    clients = {
        population.names[i]: {
            "cluster": int(served.clusters[j]),
            "either": either.get(j),
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
        "notes": [*(population.notes if data is not None else []), *([] if labelled else [UNLABELLED])],
    }


UNLABELLED = "these clients have no labels: they are placed by their inputs alone, and nothing is measured"


def charged_by_name(path: Path, run: str, population: Population, once: Spent) -> Spent:
    """What noise of the method's own has cost those of these clients that were admitted most often, each time among
    other data: the same ones of one run again get the same noise, which is no second release."""
    ledger = LedgerFile.open(path)
    numbers = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) for name in population.names]
    call = f"{run} {population.digest}"
    if call not in ledger.charged:
        ledger.charge(Charge(call, numbers, 1, []))
    times = max(ledger.releases[number] for number in numbers)
    noise = multiplier(once.epsilon, once.delta)
    return replace(once, epsilon=epsilon_of(noise, once.delta, times), uploads=times)


def admitting(method: Method[Any], labelled: bool) -> Method[Any]:
    """The method, as it admits clients that have labels or none."""
    if labelled:
        return method
    found = method.for_inputs()
    if found is None:
        raise ConfigError(
            f"data should have labels for method={method.name!r}, which cannot place clients by their inputs alone; "
            "kin, flux, mcfl and methods with one model for all can"
        )
    return found
