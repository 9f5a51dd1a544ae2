"""The server's process: it meets the nodes, and carries out the same durable run that a simulation is."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from clusterfl.callback import Callback, Moment
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.flower.engine import Exchange, Flower, Post, Seen
from clusterfl.engines.flower.messages import Introduction, Place, Problem, Reading
from clusterfl.errors import ClientError, ClusterflError, ConfigError
from clusterfl.federate import service
from clusterfl.federate.data import class_names, public_samples
from clusterfl.federate.folder import FOLDER, SINCE, Federation
from clusterfl.federate.meeting import agreed_classes, agreed_reading, check_shapes, meet, stand_in
from clusterfl.federate.processes import began
from clusterfl.runs.files import write_whole
from clusterfl.runs.run import carry_out
from clusterfl.runs.setup import prepare
from clusterfl.task import Task

log = logging.getLogger(__name__)

NODES = "nodes.json"


def serve(grid: Any, run_id: int, settings: Mapping[str, Any]) -> None:
    """What Flower's server app does."""
    from clusterfl.engines.flower.grid import GridPost

    federation = Federation.read(Path(os.environ[FOLDER]))
    to_file = logging.FileHandler(federation.run_log, encoding="utf-8")
    to_file.setLevel(logging.INFO)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    logging.getLogger("clusterfl").setLevel(logging.INFO)
    logging.getLogger().addHandler(to_file)  # Flower keeps what its apps print to itself
    say(federation, "running", run=run_id)
    try:
        keys = None if federation.insecure else federation.public_keys()
        post = GridPost(grid, keys, float(os.environ.get(SINCE, "0")))
        said: list[str] = []
        if settings["task"] == "run":
            train(federation, post, f"{run_id}", resume=bool(settings["resume"]), force=bool(settings["force"]))
        else:
            said = attend(federation, post, f"{run_id}", settings)
    except (ClusterflError, ClientError) as e:
        say(federation, "failed", " ".join(str(e).split()), run=run_id)
        raise
    except BaseException as e:
        say(federation, "failed", f"{type(e).__name__}: {e}", run=run_id)
        raise
    say(federation, "finished", run=run_id, said=said)


def say(federation: Federation, state: str, error: str = "", run: int = 0, said: Sequence[str] = ()) -> None:
    """Where the server's process stands, for whoever watches it."""
    mine = {"pid": os.getpid(), "began": began(os.getpid()), "run": run}
    found = {"state": state, "error": error, "said": list(said), **mine}
    write_whole(federation.folder / "state.json", (json.dumps(found, indent=2) + "\n").encode())


def train(federation: Federation, post: Post, attempt: str, *, resume: bool = False, force: bool = False) -> None:
    """The run, from its start or its last checkpoint."""
    config = Config.load(federation.config)
    names, run = federation.trained(config), federation.run_folder
    known = read_nodes(run) if resume else {}
    exchange = Exchange(post, federation.terms, seen_of(known))
    reading = reading_of(config)
    introductions: dict[str, Introduction] = {}
    if federation.demo:
        population = demo_population(config, names)
        classes = class_names(population)
        welcome = set(names).difference(federation.revoked)
        here = exchange.wait_for(welcome, len(welcome), exchange.clock() + federation.terms.wait)
        if len(here) < federation.terms.least:
            raise ClusterflError(f"{federation.terms.least} nodes should be connected, but only {len(here)} are")
    else:
        introductions = meet(names, exchange, reading, known, federation.revoked)
        classes = agreed_classes(federation, introductions, tuple(known.get("classes", ())))
        reading = agreed_reading(federation, introductions, reading, settled(reading, known))
        check_shapes(introductions)
        population = stand_in(names, introductions, classes, reading)
        if federation.public:
            x = public_samples(federation.folder / federation.public, population, reading.normalize)
            population = replace(population, indicators=(x, torch.zeros(len(x), dtype=torch.int64)))
    facts = {
        "run": known.get("run") or f"run{attempt}",
        "classes": list(classes),
        "input_shape": list(population.input_shape),
        "outputs": population.outputs,
        "columns": list(reading.features or ()),
        "words": [list(words) for words in reading.words],
        "introductions": {n: asdict(i) for n, i in introductions.items()},
    }
    problem = problem_of(config, facts)
    place = Place(str(facts["run"]), {f"try{attempt}": 0}, 0, -1)
    back = config.checkpoint.every * config.checkpoint.keep
    watch = Watch(run, exchange, names, facts, back, known.get("attempts", {}))

    def far(task: Task, population: Population) -> BaseEngine:
        watch.engine = Flower(task, population, exchange, names, problem, reading, place)
        return watch.engine

    carry_out(config, population, out=run, resume=resume, force=force, callbacks=[watch], far=far)


def demo_population(config: Config, names: tuple[str, ...]) -> Population:
    """The config's own clients under their nodes' names; the server asks the nodes all the same."""
    made = config.population()
    if len(made.names) != len(names):
        raise ConfigError(f"nodes={len(names)} should be as many as the config's clients, {len(made.names)}")
    return replace(made, names=names)


def reading_of(config: Config) -> Reading:
    data = config.data
    names = data.client_column or "client", data.label_column or "label", data.feature_columns, data.categorical or ()
    return Reading(data.normalize, data.test_fraction, config.task.regression, *names)


def settled(reading: Reading, known: Mapping[str, Any]) -> Reading:
    """The same with what a run that has begun has agreed on."""
    columns, words = tuple(known.get("columns", ())), tuple(tuple(w) for w in known.get("words", ()))
    return replace(reading, features=columns or reading.features, words=words)


def problem_of(config: Config, facts: Mapping[str, Any]) -> Problem:
    """What nodes compute with, of a run that has begun."""
    privacy = {f.name: getattr(config.privacy, f.name) for f in fields(config.privacy)}
    shape, classes = tuple(facts["input_shape"]), tuple(facts["classes"])
    task = {name: getattr(config.task, name) for name in ("loss", "metric", "class_weights")}
    return Problem(config.model.name, config.model.params, shape, classes, int(facts["outputs"]), task, privacy)


# -- models in service -------------------------------------------------------------------------------------


def attend(federation: Federation, post: Post, attempt: str, settings: Mapping[str, Any]) -> list[str]:
    """Publishes, rolls back, hands out or admits; what was done, in words."""
    config, known = Config.load(federation.config), read_nodes(federation.run_folder)
    if not known:
        raise ConfigError(f"{federation.run_folder} should hold a run of this federation; train one first")
    asked = int(settings["round"])
    snapshot = service.snapshot_of(federation.run_folder, None if asked < 0 else asked)
    exchange = Exchange(post, federation.terms, seen_of(known))
    asking, problem = reading_of(config), problem_of(config, known)
    reading = settled(asking, known)
    place = Place(known["run"], known["attempts"], snapshot.round, -1)
    desk = service.Desk(federation, config, exchange, problem, reading, place)
    if settings["task"] == "publish":
        return service.publish(desk, snapshot, float(settings["margin"]))
    if settings["task"] == "rollback":
        return service.rollback(desk, snapshot, int(settings["cluster"]))
    if settings["task"] == "deliver":
        return service.deliver(desk, snapshot)
    name = str(settings["node"])
    said = meet((name,), exchange, asking, {})
    agreed_classes(replace(federation, classes=problem.classes), said, ())
    agreed_reading(federation, said, asking, reading)
    if said[name].declined:
        raise ClusterflError(f"node {name!r} cannot be admitted: {said[name].declined}")
    everybody = stand_in(federation.nodes, said, problem.classes, reading)

    def far(task: Task, population: Population) -> BaseEngine:
        return Flower(task, population, exchange, federation.nodes, problem, reading, place)

    setup = prepare(config, everybody, far=far, start=False)
    with setup.engine() as engine:
        return service.admit(desk, engine, snapshot, name)


# -- how it goes -------------------------------------------------------------------------------------------


class Watch(Callback):
    """After each round: what is settled is settled, and what is known of each node is written beside the run."""

    def __init__(
        self,
        run: Path,
        exchange: Exchange,
        names: tuple[str, ...],
        facts: dict[str, Any],
        back: int,  # rounds that a resume may go back
        before: dict[str, int],  # attempts
    ) -> None:
        self.run, self.exchange, self.names, self.facts, self.back = run, exchange, names, facts, back
        self.before = before
        self.engine: Flower | None = None

    def on_start(self, moment: Moment) -> None:
        assert self.engine is not None
        stay = {name: first for name, first in self.before.items() if first <= moment.round}
        if stay:  # a resume: the next round is the first of this attempt
            attempts = {**stay, self.engine.place.attempt: moment.round + 1}
            self.engine.place = replace(self.engine.place, attempts=attempts)
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        assert self.engine is not None
        self.engine.place = replace(self.engine.place, epoch=moment.round + 1, oldest=moment.round - self.back)
        seen = {name: asdict(self.exchange.seen.get(name, Seen())) for name in self.names}
        clusters = dict(zip(self.names, moment.record.assign.tolist(), strict=False))
        rows = {
            **self.facts,
            "attempts": self.engine.place.attempts,
            "round": moment.round,
            "clusters": clusters,
            "seen": seen,
        }
        write_whole(self.run / NODES, (json.dumps(rows, indent=2) + "\n").encode())


def seen_of(known: Mapping[str, Any]) -> dict[str, Seen]:
    """What the server knew of each node when it last wrote it down."""
    return {name: Seen(**told) for name, told in known.get("seen", {}).items()}


def read_nodes(run: Path) -> dict[str, Any]:
    """What is known of a run's nodes; nothing where it has none."""
    try:
        found: dict[str, Any] = json.loads((run / NODES).read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}
