"""Bringing a federation up, running it, and taking it down."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.engines.flower.engine import Terms
from clusterfl.errors import ClusterflError, ConfigError
from clusterfl.federate import control, processes
from clusterfl.federate.folder import FILE, Federation
from clusterfl.federate.init import for_nodes, init
from clusterfl.federate.processes import Process
from clusterfl.outside import is_outside
from clusterfl.runs.files import write_whole

log = logging.getLogger(__name__)

Told = Callable[[dict[str, Any]], None]  # is given each round's line of rounds.jsonl


@contextmanager
def server_up(federation: Federation) -> Iterator[Process]:
    """The server, started unless it runs already; it stays up, and nodes stay connected."""
    running = processes.noted(federation)
    server = next((p for p in running if p.role == "server"), None)
    if server is None:
        processes.end(orphan_of(federation))
        server = processes.start_server(federation)
        processes.note(federation, [*running, server])
    processes.wait_until_open(federation, server)
    control.register(federation, federation.welcome)
    yield server


def run(federation: Federation, *, resume: bool = False, force: bool = False, told: Told | None = None) -> None:
    """Starts the server, hands it the app and follows the run to its end."""
    with server_up(federation) as server:
        follow(federation, server, told, resume=resume, force=force)


def attend(federation: Federation, task: str, **settings: str | float | int) -> list[str]:
    """Publishes, rolls back, hands out or admits on the nodes that are connected; what was done, in words."""
    with server_up(federation) as server:
        follow(federation, server, None, task=task, **settings)
        return list(state_of(federation)["said"])


def follow(
    federation: Federation, server: Process, told: Told | None = None, **settings: str | float | int | bool
) -> None:
    """Submits a run and tells of each of its rounds until it has ended; ClusterflError if it fails."""
    (federation.folder / "state.json").unlink(missing_ok=True)
    before = _stamp(federation.run_folder / "rounds.jsonl")
    control.submit(federation, **settings)
    said, began_at = 0, time.monotonic()
    while True:
        state = state_of(federation)
        said = _tell(federation, said, before, told)
        if state.get("state") == "finished":
            _tell(federation, said, before, told)
            return
        if not server.alive:  # first: the app then fails too, for this reason
            raise ClusterflError(f"the server has ended within the run; see {federation.run_log}, then resume")
        if state.get("state") == "failed":
            raise ClusterflError(f"the run has failed: {state.get('error')}; see {federation.run_log}")
        if state and not app_process(state).alive:
            time.sleep(1.0)  # its last word may be under way
            if state_of(federation).get("state") == "running":
                raise ClusterflError(f"the run has ended without a word; see {federation.run_log}, then resume")
        if not state and time.monotonic() - began_at > 300:
            raise ClusterflError(f"the run should have started within 300 s; see {server.log}")
        time.sleep(0.5)


def state_of(federation: Federation) -> dict[str, Any]:
    """What the server's process last said; nothing where it has not begun."""
    try:
        found: dict[str, Any] = json.loads((federation.folder / "state.json").read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}


def app_process(state: dict[str, Any]) -> Process:
    """The server app's own process, which Flower has started."""
    return Process("server app", int(state["pid"]), int(state["began"]), "")


def orphan_of(federation: Federation) -> list[Process]:
    """The app that a killed server has left behind: it holds the run's folder and would have the last word."""
    state = state_of(federation)
    return [app_process(state)] if state.get("state") == "running" else []


def _stamp(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _tell(federation: Federation, said: int, before: float, told: Told | None) -> int:
    path = federation.run_folder / "rounds.jsonl"
    if told is None or _stamp(path) == before:
        return said
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:  # an earlier run has just been cleared away
        return said
    whole = [line for line in lines if line.endswith("\n")]
    for line in whole[said:]:
        told(json.loads(line))
    return max(said, len(whole))


# -- all on this machine -----------------------------------------------------------------------------------


def local(
    config: Config,
    out: Path,
    nodes: int,
    *,
    insecure: bool = False,
    resume: bool = False,
    force: bool = False,
    terms: Terms | None = None,
    told: Told | None = None,
) -> Federation:
    """A server and ``nodes`` nodes as processes of this machine, on loopback; ``out`` is the run's folder."""
    folder = (out / "federation").resolve()
    if resume:
        federation = moved(Federation.read(folder))
    else:
        if (folder / FILE).exists():
            federation = renewed(folder, config, nodes, insecure=insecure, terms=terms, force=force)
        else:
            federation = _new(folder, config, nodes, insecure=insecure, terms=terms)
    with everything_up(federation) as server:
        follow(federation, server, told, resume=resume, force=force)
    return federation


def _new(folder: Path, config: Config, nodes: int, *, insecure: bool, terms: Terms | None) -> Federation:
    names = tuple(f"node-{i}" for i in range(nodes))
    made = Federation(
        folder,
        names,
        port=processes.free_port(),
        insecure=insecure,
        demo=True,
        run="..",
        terms=terms or Terms(least=min(2, nodes)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    return init(made, config)


def renewed(
    folder: Path, config: Config, nodes: int, *, insecure: bool, terms: Terms | None, force: bool
) -> Federation:
    """A federation of this machine again: the same config, or with ``force`` another one."""
    there = Federation.read(folder)
    if len(there.nodes) != nodes or there.insecure != insecure or not there.demo:
        raise ConfigError(f"{folder.parent} holds another federation and should be a new folder")
    wanted = for_nodes(config, there).toml()
    if wanted != there.config.read_text(encoding="utf-8") and not force:
        raise ConfigError(f"out={folder.parent} holds another run and should be a new folder, or add --force")
    write_whole(there.config, wanted.encode())
    return moved(replace(there, terms=terms or there.terms))


def moved(federation: Federation) -> Federation:
    """The same federation on a port that is free now, unless its server still runs."""
    if any(p.role == "server" for p in processes.noted(federation)):
        raise ClusterflError(f"{federation.folder} is running; end it with `clusterfl federate stop` first")
    fresh = replace(federation, port=processes.free_port())
    fresh.write()
    return fresh


@contextmanager
def everything_up(federation: Federation) -> Iterator[Process]:
    """Server and nodes, started here and ended here, however it goes."""
    try:
        with server_up(federation) as server:
            for i in range(len(federation.nodes)):
                start_demo_node(federation, i)
            yield server
    finally:
        stop(federation)


def start_demo_node(federation: Federation, index: int) -> Process:
    """A node that holds its client of the config's own data."""
    settings: dict[str, str | int] = {"data": "list", "config": str(federation.config), "index": index}
    used = Config.load(federation.config)
    method = used.table()["method"]
    named = (used.model.name, method["name"], method.get("feature", ""), used.data.source)
    code = [name for name in named if is_outside(name)]
    if code:
        settings["code"] = ",".join(code)
    node = processes.start_node(federation, federation.nodes[index], settings)
    processes.note(federation, [*processes.noted(federation), node])
    return node


def stop(federation: Federation) -> Sequence[Process]:
    """Ends what was started from this folder; returns what that was."""
    running = processes.noted(federation)
    processes.end([*running, *orphan_of(federation)])
    processes.note(federation, [])
    return running
