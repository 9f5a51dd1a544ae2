"""A federation without Flower: the same server and the same nodes, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.engines.flower.engine import Arrival, Terms
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import for_nodes
from clusterfl.federate.node import node_of
from clusterfl.federate.server import train

DIGITS = ["data.samples=12", "data.test_samples=40", "data.clusters=2", "data.unseen=0", "rounds=2", "local.epochs=1"]


@dataclass
class Fleet:
    """Nodes that answer at once. ``spoil`` may change or swallow an answer; ``away`` are not connected."""

    settings: dict[str, dict[str, Any]]
    spoil: Callable[[str, int, bytes], bytes | None] = lambda name, turn, answer: answer
    away: set[str] = field(default_factory=set)
    turn: int = 0
    sent: int = 0
    arrived: list[Arrival] = field(default_factory=list)

    def present(self) -> set[str]:
        return self.settings.keys() - self.away

    def send(self, kind: str, letters: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        self.turn += 1
        ids = {}
        for name, letter in letters.items():
            self.sent += 1
            ids[name] = f"{self.sent}"
            answer = self.spoil(name, self.turn, node_of({"name": name, **self.settings[name]}).answer(letter))
            if answer is not None:
                self.arrived.append(Arrival(ids[name], answer))
        return ids

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        found = [a for a in self.arrived if a.reply_to in ids]
        self.arrived = [a for a in self.arrived if a.reply_to not in ids]
        return found


def demo(folder: Path, nodes: int, *changes: str, terms: Terms | None = None) -> tuple[Federation, Fleet]:
    """A federation whose nodes hold the config's own clients, and its nodes."""
    folder.mkdir(parents=True)
    names = tuple(f"node-{i}" for i in range(nodes))
    terms = terms or Terms(timeout=0.2, wait=0.2, poll=0.01, least=1)
    federation = Federation(folder, names, demo=True, run="run", terms=terms)
    config = for_nodes(Config.load(None, [*DIGITS, f"data.clients={nodes}", *changes]), federation)
    federation.config.write_text(config.toml())
    settings = {
        n: {"home": folder / n, "data": "list", "config": federation.config, "index": i} for i, n in enumerate(names)
    }
    return federation, Fleet(settings)


def own(folder: Path, files: dict[str, Any], *changes: str, **more: Any) -> tuple[Federation, Fleet]:
    """A federation whose nodes hold their own files."""
    folder.mkdir(parents=True, exist_ok=True)
    terms = Terms(timeout=0.2, wait=0.2, poll=0.01, least=1)
    federation = Federation(folder, tuple(files), run="run", terms=terms)
    federation = replace(federation, **more)
    config = for_nodes(Config.load(None, [*changes]), federation)
    federation.config.write_text(config.toml())
    return federation, Fleet({n: {"home": folder / n, "data": str(f)} for n, f in files.items()})


def run(federation: Federation, fleet: Fleet, attempt: str = "1", *, resume: bool = False) -> None:
    train(federation, fleet, attempt, resume=resume)
