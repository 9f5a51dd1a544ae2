"""Models in service: each cluster's model has versions, and a node serves the one that is current.

A new version becomes current only through the gate: on the clients' own held-out data it may not be worse than the
current one by more than a margin. ``service/`` in the federation's folder holds all versions; nodes keep the last two.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.engines import codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.flower.engine import Exchange
from clusterfl.engines.flower.messages import Delivery, Place, Problem, Reading, Receipt, Request
from clusterfl.errors import ClusterflError, ConfigError, DataError
from clusterfl.evaluate.procedures import FarScore
from clusterfl.federate.folder import Federation
from clusterfl.method import Method, NotDefined, Served
from clusterfl.runs.checkpoint import Snapshot, newest_snapshot, read_snapshot
from clusterfl.runs.files import write_whole
from clusterfl.runs.ledger import charge_to
from clusterfl.tree import Tree, row

log = logging.getLogger(__name__)


@dataclass
class Versions:
    """What ``service/service.json`` says: the versions of each cluster's model, and newcomers' clusters."""

    folder: Path
    clusters: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)
    newcomers: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def read(federation: Federation) -> Versions:
        folder = federation.folder / "service"
        try:
            table = json.loads((folder / "service.json").read_bytes())
        except OSError:
            return Versions(folder)
        clusters = {int(k): entries for k, entries in table["clusters"].items()}
        current = {int(k): version for k, version in table["current"].items()}
        return Versions(folder, clusters, current, table["newcomers"])

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        table = {"clusters": self.clusters, "current": self.current, "newcomers": self.newcomers}
        write_whole(self.folder / "service.json", (json.dumps(table, indent=2) + "\n").encode())

    def add(self, cluster: int, round: int, theta: Tree, score: float | None) -> int:
        """The number of a new version, which is not current yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        there = self.clusters.setdefault(cluster, [])
        version = 1 + max((entry["version"] for entry in there), default=0)
        data = save_tensors({n: t.contiguous() for n, t in theta.items()})
        name = f"cluster-{cluster}-version-{version}.safetensors"
        write_whole(self.folder / name, data)
        digest = hashlib.sha256(data).hexdigest()
        there.append({"version": version, "round": round, "file": name, "sha256": digest, "score": score})
        return version

    def model(self, cluster: int, version: int) -> tuple[int, Tree]:
        """The round that a version is of, and its model."""
        entry = next((e for e in self.clusters.get(cluster, []) if e["version"] == version), None)
        if entry is None:
            raise ConfigError(f"cluster={cluster} should have a version {version}; publish one first")
        data = (self.folder / Path(entry["file"]).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise DataError(f"{entry['file']} should have the SHA-256 of service.json, but was changed or damaged")
        return int(entry["round"]), load_tensors(data)

    def before(self, cluster: int) -> int:
        """The version before the current one."""
        versions = [e["version"] for e in self.clusters.get(cluster, []) if e["version"] < self.current.get(cluster, 0)]
        if not versions:
            raise ConfigError(f"cluster={cluster} should have a version before the current one to go back to")
        return int(max(versions))


@dataclass(frozen=True)
class Desk:
    """All that is needed to hand models to nodes."""

    federation: Federation
    config: Config
    exchange: Exchange
    problem: Problem
    reading: Reading
    place: Place

    @property
    def method(self) -> Method[Any]:
        return self.config.method

    def deliver(
        self, to: Mapping[str, int], models: Mapping[int, tuple[int, int, Tree]], served: Served, *, trial: bool
    ) -> dict[str, Receipt]:
        """Hands each node the (version, round, model) of its cluster; what they say of it, by node."""
        letters: dict[str, bytes] = {}
        tokens: dict[str, int] = {}
        for name, cluster in to.items():
            version, round, theta = models[cluster]
            client = self.federation.nodes.index(name)
            key = keys.fold_in(keys.key(self.config.seed), "serve", round)
            tokens[name] = int(keys.fold_in(key, "trial" if trial else "delivery", client, version))
            personal = self.method if served.personal else FarScore()
            request = Request(
                tokens[name],
                name,
                client,
                self.exchange.place_for(name, self.place),
                self.problem,
                self.reading,
                personal,
                "personalise",
                served.shared if served.personal else {},
                {"theta": theta},
                key,
                round,
                True,
            )
            letters[name] = codec.pack(Delivery(request, cluster, version, trial))
        answers, _ = self.exchange.run("trial" if trial else "delivery", "query", letters, tokens)
        return {name: a for name, a in answers.items() if isinstance(a, Receipt)}


def publish(desk: Desk, snapshot: Snapshot, margin: float) -> list[str]:
    """Makes a round's models current, cluster by cluster, each only if it passes the gate; says what was decided."""
    if margin < 0:
        raise ConfigError(f"margin={margin} should be at least 0")
    versions = Versions.read(desk.federation)
    served = served_by(desk, snapshot)
    homes = homes_of(desk, served, versions)
    asked = {k: (0, snapshot.round, row(served.models, k)) for k in sorted(set(homes.values()))}
    receipts = desk.deliver(homes, asked, served, trial=True)
    said, passed = [], {}
    for k, (_, round, theta) in asked.items():
        tried = [receipts[name] for name, home in homes.items() if home == k and name in receipts]
        good, verdict = gate(tried, margin)
        said.append(f"cluster {k}: {verdict}")
        if good:
            passed[k] = (versions.add(k, round, theta, mean_score(tried)), round, theta)
            versions.current[k] = passed[k][0]
    versions.write()
    to = {name: k for name, k in homes.items() if k in passed}
    got = desk.deliver(to, passed, served, trial=False) if to else {}
    said += [f"node {name}: not reached; it serves its last good version" for name in to if name not in got]
    return said


def gate(tried: list[Receipt], margin: float) -> tuple[bool, str]:
    """Whether a version may become current, and why: it is compared on the nodes that serve one already."""
    if not tried:
        return False, "refused: no node could try it"
    both = [r for r in tried if r.serving >= 0 and r.samples]
    if not both:
        new = mean_score(tried)
        if new is not None and not isfinite(new):
            return False, "refused: its score is not finite"
        return True, "published, the first version; " + ("not measured" if new is None else f"score {new:.3f}")
    samples = sum(r.samples for r in both)
    better, old = sum(r.score for r in both) / samples, sum(r.score_now for r in both) / samples
    if not isfinite(better):
        return False, "refused: its score is not finite"
    if better < old - margin:  # where the current one's is not finite, anything is better
        return False, f"refused: score {better:.3f} is below {old:.3f} of the current version by more than {margin:g}"
    return True, f"published; score {better:.3f}, the version before had {old:.3f}"


def mean_score(tried: list[Receipt]) -> float | None:
    """Over all samples of some nodes: accuracy or, of numbers, the mean loss with its sign turned."""
    samples = sum(r.samples for r in tried)
    return sum(r.score for r in tried) / samples if samples else None


def rollback(desk: Desk, snapshot: Snapshot, cluster: int) -> list[str]:
    """Makes the version before the current one current again, without a gate."""
    versions = Versions.read(desk.federation)
    version = versions.before(cluster)
    round, theta = versions.model(cluster, version)
    served = served_by(desk, snapshot)
    homes = {n: k for n, k in homes_of(desk, served, versions).items() if k == cluster}
    versions.current[cluster] = version
    versions.write()
    got = desk.deliver(homes, {cluster: (version, round, theta)}, served, trial=False) if homes else {}
    missed = [f"node {name}: not reached; it serves its last good version" for name in homes if name not in got]
    return [f"cluster {cluster}: back to version {version}, of round {round}", *missed]


def deliver(desk: Desk, snapshot: Snapshot) -> list[str]:
    """Hands every node the version that is current in its cluster: some were away when it became so."""
    versions = Versions.read(desk.federation)
    served = served_by(desk, snapshot)
    homes = {n: k for n, k in homes_of(desk, served, versions).items() if k in versions.current}
    if not homes:
        raise ConfigError("there should be a version in service to hand out; publish one first")
    models = {k: (versions.current[k], *versions.model(k, versions.current[k])) for k in set(homes.values())}
    got = desk.deliver(homes, models, served, trial=False)
    return [
        f"node {name}: serves version {versions.current[k]} of cluster {k}"
        if name in got
        else f"node {name}: not reached; it serves its last good version"
        for name, k in homes.items()
    ]


def admit(desk: Desk, engine: BaseEngine, snapshot: Snapshot, name: str) -> list[str]:
    """Gives a new node its cluster, by the method's own rule, and the version that is current there."""
    federation, versions = desk.federation, Versions.read(desk.federation)
    ids = torch.tensor([federation.nodes.index(name)])
    key = keys.fold_in(keys.key(desk.config.seed), "admit")
    key = charge_to(engine, federation.run_folder / "privacy-admitted.log", key)
    cohort = engine.cohort(ids, key, snapshot.round)
    try:
        served = desk.method.admit(snapshot.state, cohort)
    except NotDefined as e:
        raise ConfigError(f"method={desk.method.name!r} should be one that admits clients: {e}") from e
    cluster = int(served.index[0])
    versions.newcomers[name] = cluster
    versions.write()
    if cluster not in versions.current:
        return [f"node {name}: cluster {cluster}; no version of it is published yet"]
    version = versions.current[cluster]
    round, theta = versions.model(cluster, version)
    got = desk.deliver({name: cluster}, {cluster: (version, round, theta)}, served, trial=False)
    if name not in got:
        raise ClusterflError(f"node {name!r} should take its model, but was not reached; admit it again")
    score = mean_score([got[name]])
    measured = "" if score is None else f", score {score:.3f} on its own data"
    return [f"node {name}: cluster {cluster}, serves version {version}{measured}"]


def served_by(desk: Desk, snapshot: Snapshot) -> Served:
    """The models of a round, and which one each node that trained uses."""
    return desk.method.serve(snapshot.state, torch.arange(len(desk.federation.trained(desk.config))))


def homes_of(desk: Desk, served: Served, versions: Versions) -> dict[str, int]:
    """Every node's cluster, newcomers' too."""
    trained = desk.federation.trained(desk.config)
    return {**dict(zip(trained, served.index.tolist(), strict=True)), **versions.newcomers}


def snapshot_of(run: Path, round: int | None) -> Snapshot:
    """The checkpoint of a round; of the newest one where none is named."""
    if round is None:
        return newest_snapshot(run)
    path = run / "checkpoints" / f"round-{round:06d}.ckpt"
    if not path.exists():
        there = [int(p.stem.removeprefix("round-")) for p in sorted((run / "checkpoints").glob("round-*.ckpt"))]
        raise ConfigError(f"round={round} should be one whose checkpoint is kept: {there}; checkpoint.keep keeps more")
    return read_snapshot(path)
