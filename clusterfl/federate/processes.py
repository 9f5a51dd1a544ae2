"""The processes of a federation on this machine: started into sessions of their own, known by id, ended by id."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import clusterfl
from clusterfl.errors import ClusterflError
from clusterfl.federate import resident
from clusterfl.federate.folder import FOLDER, SINCE, Federation, loopback
from clusterfl.runs.files import write_whole

LOWEST, EPHEMERAL = 10_000, 32_768  # servers of one's own; where outgoing connections begin, unless Linux says


@dataclass(frozen=True)
class Process:
    """A process that was started here. Its start tells it from another that got the same number later."""

    role: str  # "server" or a node's name
    pid: int
    began: int
    log: str

    @property
    def alive(self) -> bool:
        return began(self.pid) == self.began


def began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    parts = text.rpartition(")")[2].split()
    return None if parts[0] in ("Z", "X") else int(parts[19])


def free_port() -> int:
    """A port that nobody listens on, below those that outgoing connections get: one of them, even a node's that looks
    for a server which has just died, would hold it when the server comes."""
    try:
        above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        above = EPHEMERAL
    for port in random.SystemRandom().sample(range(LOWEST, max(above, LOWEST + 1000)), 100):
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
    raise ClusterflError("a port should be free on 127.0.0.1, but none was found")


def environment(federation_home: Path) -> dict[str, str]:
    """What Flower's processes get: a home of their own, no calls home, this very program."""
    here = str(Path(clusterfl.__file__).resolve().parent.parent)
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "FLWR_HOME": str(federation_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds between two looks for work; 1 by itself
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
    }


def start(role: str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            child = subprocess.Popen(
                list(arguments), env=dict(env), stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )
    except FileNotFoundError:
        raise ClusterflError(f"{arguments[0]} should be installed: pip install 'clusterfl[flower]'") from None
    return Process(role, child.pid, began(child.pid) or 0, str(log))


def start_server(federation: Federation) -> Process:
    """Flower's SuperLink, which starts the server app when a run is submitted."""
    home = federation.folder / "server"
    certificates = [] if federation.insecure else _certificates(federation.authority[0], *federation.certificate)
    security = ["--insecure"] if federation.insecure else [*certificates, "--enable-supernode-auth"]
    bound = federation.host if loopback(federation.host) else "0.0.0.0"
    arguments = ["flower-superlink", *security, "--host", bound, "--port", str(federation.port)]
    arguments += ["--database", str(home / "state.db"), "--isolation", "subprocess"]
    arguments += ["--disable-runtime-dependency-installation"]
    env = {**environment(home / "flwr"), FOLDER: str(federation.folder), SINCE: str(time.time())}
    return start("server", arguments, env, home / "server.log")


def _certificates(authority: Path, certificate: Path, key: Path) -> list[str]:
    return ["--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]


def node_arguments(home: Path, server: str, *, insecure: bool, settings: Mapping[str, str | int]) -> list[str]:
    """Flower's SuperNode for one client. ``settings`` say where its data is; they stay on this machine."""
    given = " ".join(f"{n}={json.dumps(v)}" for n, v in settings.items())
    arguments = ["flower-supernode", "--superlink", server, "--node-config", given, "--isolation", "subprocess"]
    arguments += ["--host", "127.0.0.1", "--port", str(free_port())]
    if insecure:
        return [*arguments, "--insecure"]
    arguments += ["--root-certificates", str(home / "ca.crt"), "--auth-supernode-private-key", str(home / "key")]
    return arguments + _certificates(home / "own.crt", home / "own.crt", home / "own.key")


def live_as_node(home: Path, server: str, *, insecure: bool, settings: Mapping[str, str | int]) -> int:
    """Makes this process a node, until it is ended."""
    env = environment(home / "flwr")

    def supernode(place: str) -> subprocess.Popen[bytes]:
        own = {**settings, "socket": place}
        arguments = node_arguments(home, server, insecure=insecure, settings=own)
        try:
            return subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
        except FileNotFoundError:
            raise ClusterflError(f"{arguments[0]} should be installed: pip install 'clusterfl[flower]'") from None

    def answerer() -> resident.Answerer:
        from clusterfl.federate.node import node_of  # PyTorch is loaded while Flower starts

        return node_of(dict(settings)).answer

    return resident.live(home, supernode, answerer)


def _end_with_parent() -> None:
    """A node that is killed takes its SuperNode along (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start_node(
    federation: Federation, name: str, settings: Mapping[str, str | int], *, inside: Sequence[str] = ()
) -> Process:
    """A node of this machine; ``inside``: a command that runs another in some surroundings (a network namespace)."""
    home = federation.node(name)
    arguments = [sys.executable, "-m", "clusterfl", "federate", "node", str(home), "--name", name]
    arguments += ["--server", federation.address, *(["--insecure"] if federation.insecure else [])]
    arguments += [part for n, v in settings.items() for part in (f"--{n}", str(v))]
    return start(name, [*inside, *arguments], environment(home / "flwr"), home / "node.log")


def wait_until_open(federation: Federation, process: Process, seconds: float = 180.0) -> None:
    """Waits until the server answers on its port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not process.alive:
            raise ClusterflError(f"the server should start, but ended; see {process.log}")
        host = federation.host if loopback(federation.host) else "127.0.0.1"
        with contextlib.suppress(OSError), socket.create_connection((host, federation.port), 1.0):
            return
        time.sleep(0.3)
    raise ClusterflError(f"the server should answer on port {federation.port} within {seconds:g} s; see {process.log}")


# -- what was started, in the federation's folder ----------------------------------------------------------


def note(federation: Federation, processes: Sequence[Process]) -> None:
    text = json.dumps([asdict(p) for p in processes], indent=2) + "\n"
    write_whole(federation.folder / "processes.json", text.encode())


def noted(federation: Federation) -> list[Process]:
    """The processes that were started here and still run."""
    try:
        found = json.loads((federation.folder / "processes.json").read_text(encoding="utf-8"))
        return [p for p in (Process(**entry) for entry in found) if p.alive]
    except (OSError, ValueError, TypeError):
        return []


def end(processes: Sequence[Process], seconds: float = 10.0) -> None:
    """Ends processes and all that they have started, asking first."""
    family = {p.pid: p for p in processes if p.alive}
    for pid, when in [*_below(family), *((pid, p.began) for pid, p in family.items())]:
        _signal(pid, when, signal.SIGTERM)
        family.setdefault(pid, Process("", pid, when, ""))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(p.alive for p in family.values()):
        _reap(list(family))
        time.sleep(0.1)
    for pid, p in family.items():
        _signal(pid, p.began, signal.SIGKILL)
    _reap(list(family))


def _signal(pid: int, when: int, what: signal.Signals) -> None:
    if began(pid) == when:  # never another process that got the number since
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, what)


def _reap(pids: Sequence[int]) -> None:
    """Takes leave of children of this very process, which would else stay as zombies."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _below(roots: Mapping[int, Process]) -> list[tuple[int, int]]:
    """(id, start) of all processes that descend from these."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (path / "stat").read_text(encoding="utf-8", errors="replace")
            parents[int(path.name)] = int(text.rpartition(")")[2].split()[1])
    found: list[tuple[int, int]] = []
    level = set(roots)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += [(pid, when) for pid in level if (when := began(pid)) is not None]
    return found
