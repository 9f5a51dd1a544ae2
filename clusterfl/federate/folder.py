"""A federation's folder: who belongs to it, where its server is, and what each party is handed."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import shutil
import stat
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from clusterfl.config import GIVEN, Config
from clusterfl.config.tables import read
from clusterfl.data.config import DataConfig
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.flower.engine import Terms
from clusterfl.errors import ConfigError, suggestion
from clusterfl.federate.certificates import make_authority, make_node_key, make_own, make_server, public_pem
from clusterfl.outside import is_outside
from clusterfl.runs.files import write_whole

FILE = "federation.toml"
FOLDER = "CLUSTERFL_FEDERATION"  # in the server's environment: nodes are told nothing of its paths
SINCE = "CLUSTERFL_SINCE"  # there too: when the server began, in seconds since 1970
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Federation:
    """What ``federation.toml`` says."""

    folder: Path
    nodes: tuple[str, ...]
    host: str = "127.0.0.1"  # by which nodes reach the server
    port: int = 9092
    insecure: bool = False
    demo: bool = False  # nodes hold the config's own population, node i its client i
    run: str = "run"  # the run's folder, beside this file
    revoked: tuple[str, ...] = ()  # nodes whose keys are refused
    classes: tuple[str, ...] = ()  # all that there are; unset: those that nodes name at the start
    terms: Terms = field(default_factory=Terms)

    @staticmethod
    def read(folder: Path) -> Federation:
        path = folder / FILE
        if not path.exists():
            raise ConfigError(f"{folder} should be a federation's folder; make one with `clusterfl federate init`")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path} should be TOML, but: {e}") from None
        terms = read(Terms, table.pop("terms", {}), "terms")
        given = {"folder": folder.resolve(), "terms": terms}
        found = read(Federation, table, "", given=given)
        found.check()
        return found

    def check(self) -> None:
        """Raises where the federation cannot be."""
        for name in self.nodes:
            if not NAME.fullmatch(name):
                raise ConfigError(f"node={name!r} should be letters, digits, '.', '_' and '-' only")
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ConfigError(f"nodes={list(self.nodes)} should be different names, at least one")
        if self.insecure and not loopback(self.host):
            raise ConfigError(f"insecure=true should be used on loopback only, not with host={self.host!r}")
        if self.terms.least > len(self.nodes):
            raise ConfigError(f"terms.least={self.terms.least} should be at most the {len(self.nodes)} nodes")

    def write(self) -> None:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("folder", "terms")}
        table: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in kept.items()}
        table["terms"] = {f.name: getattr(self.terms, f.name) for f in fields(self.terms)}
        write_whole(self.folder / FILE, tomli_w.dumps(table).encode())

    # -- where things are ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def run_folder(self) -> Path:
        return (self.folder / self.run).resolve()

    @property
    def run_log(self) -> Path:
        return self.folder / "server" / "run.log"

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def authority(self) -> tuple[Path, Path]:
        return self.folder / "server" / "ca.crt", self.folder / "server" / "ca.key"

    @property
    def certificate(self) -> tuple[Path, Path]:
        return self.folder / "server" / "server.crt", self.folder / "server" / "server.key"

    def trained(self, config: Config) -> tuple[str, ...]:
        """The nodes that take part in training; those after them have come later and are admitted."""
        return self.nodes[: config.data.clients]

    def node(self, name: str) -> Path:
        """The folder that node's operator is handed."""
        return self.folder / "nodes" / name

    def public_key(self, name: str) -> Path:
        return self.folder / "server" / "keys" / f"{name}.pub"

    def public_keys(self) -> dict[str, bytes]:
        """What tells a name's owner from somebody who has taken the name."""
        return {name: public_pem(self.public_key(name)) for name in self.welcome}

    @property
    def welcome(self) -> tuple[str, ...]:
        """The nodes that may connect."""
        return tuple(name for name in self.nodes if name not in self.revoked)


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def init(federation: Federation, config: Config) -> Federation:
    """Writes a new federation's folder: keys, the app, scripts, a page for whoever operates it."""
    federation.check()
    folder = federation.folder
    if (folder / FILE).exists():
        raise ConfigError(f"{folder} holds a federation already and should be a new folder")
    config = for_nodes(config, federation)
    (folder / "server" / "keys").mkdir(parents=True)
    (folder / "server").chmod(0o700)
    write_whole(federation.config, config.toml().encode())
    if not federation.insecure:
        make_authority(*federation.authority, folder.name)
        make_server(*federation.certificate, [federation.host, "localhost", "127.0.0.1"], federation.authority)
    for name in federation.nodes:
        add_node(federation, name)
    _write_app(federation)
    _write_scripts(federation)
    federation.write()  # last: a folder that has it is whole
    return federation


def for_nodes(config: Config, federation: Federation) -> Config:
    """The config of a run whose clients are the federation's nodes; ConfigError for what only a simulation can do."""
    if config.attack.kind != "none":
        raise ConfigError(f"attack.kind={config.attack.kind!r} should be 'none' on real nodes: only a simulation lies")
    if config.data.drift_round is not None:
        raise ConfigError(f"data.drift_round={config.data.drift_round} should be unset: nodes hold what they hold")
    if config.task.metric is not None and is_outside(config.task.metric):
        raise ConfigError(f"task.metric={config.task.metric!r} should be one of the library's: nodes measure it")
    n = len(federation.nodes)
    table = config.table()
    if federation.demo:
        table["data"] = {**table["data"], "clients": n, "unseen": 0}
    else:
        kept = {"normalize": config.data.normalize, "test_fraction": config.data.test_fraction}
        own = DataConfig(source=GIVEN, split="natural", shift="none", test="own", clusters=1, clients=n, **kept)  # type: ignore[arg-type]
        table["data"] = {f.name: getattr(own, f.name) for f in fields(own) if getattr(own, f.name) is not None}
    made = Config.parse(table)
    engine = EngineConfig(name="flower", guard=config.engine.guard, clip_updates=config.engine.clip_updates)
    return made.model_copy(update={"engine": engine, "data": made.data.resolved() if federation.demo else made.data})


def add_node(federation: Federation, name: str) -> None:
    """What a new node is handed: its key, the authority's certificate, its start script."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"node={name!r} should be letters, digits, '.', '_' and '-' only")
    home = federation.node(name)
    home.mkdir(parents=True, mode=0o700)
    if not federation.insecure:
        make_node_key(home / "key", federation.public_key(name))
        make_own(home / "own.crt", home / "own.key")
        write_whole(home / "ca.crt", federation.authority[0].read_bytes())
    _script(home / "start.sh", NODE.format(arguments=" ".join(map(shlex.quote, _node_arguments(federation, name)))))


def _node_arguments(federation: Federation, name: str) -> list[str]:
    return ["--name", name, "--server", federation.address, *(["--insecure"] if federation.insecure else [])]


NODE = """#!/bin/sh
# Starts this node: ./start.sh --data my-data.npz (or .csv, .parquet, module:function)
cd "$(dirname "$0")" && exec clusterfl federate node . {arguments} "$@"
"""

SERVER = """#!/bin/sh
# Starts the server, trains and shows how it goes; --resume goes on from the last checkpoint.
cd "$(dirname "$0")" && exec clusterfl federate run . "$@"
"""

APP = """[project]
name = "clusterfl-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "clusterfl"

[tool.flwr.app.components]
serverapp = "clusterfl.federate.app:server_app"
clientapp = "clusterfl.federate.app:client_app"

[tool.flwr.app.config]
task = "run"
resume = false
force = false
round = -1
margin = 0.0
cluster = -1
node = ""
"""

README = """# The federation {name}

Server: `{address}`{lock}. Nodes: {nodes}.

1. Every machine has `clusterfl[flower]` of the same version.
2. Hand each node's operator its folder `nodes/NAME`, over a safe way: it holds that node's private key. Nobody else
   needs it, and you may remove it here afterwards.
3. On the server: `./start-server.sh`. It starts the server, waits for the nodes, trains and leaves the run in `{run}`.
4. On each node, in its folder: `./start.sh --data FILE`. The data never leaves that machine.

`clusterfl federate status .` shows the nodes, `clusterfl federate run . --resume` goes on after a break,
`clusterfl federate stop .` ends what was started here. `server/ca.key` and `server/server.key` are secret.
Let only nodes reach the server's port: whoever reaches it can hand Flower an app.
"""


def _write_app(federation: Federation) -> None:
    federation.app.mkdir()
    write_whole(federation.app / "pyproject.toml", APP.encode())


def _write_scripts(federation: Federation) -> None:
    _script(federation.folder / "start-server.sh", SERVER)
    lock = ", WITHOUT encryption" if federation.insecure else " (TLS, nodes prove themselves by their keys)"
    text = README.format(
        name=federation.folder.name,
        address=federation.address,
        lock=lock,
        nodes=", ".join(federation.nodes),
        run=federation.run,
    )
    write_whole(federation.folder / "README.md", text.encode())


def _script(path: Path, text: str) -> None:
    write_whole(path, text.encode())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def with_node(federation: Federation, name: str) -> Federation:
    """The federation with a new node at the end, so that nobody's number changes; one that was revoked comes back."""
    if name in federation.nodes and name not in federation.revoked:
        raise ConfigError(f"node={name!r} should be a new name; to replace its key, revoke it first")
    if name in federation.revoked:
        grown = replace(federation, revoked=tuple(n for n in federation.revoked if n != name))
        shutil.rmtree(federation.node(name), ignore_errors=True)
        federation.public_key(name).unlink(missing_ok=True)
    else:
        grown = replace(federation, nodes=(*federation.nodes, name))
    grown.check()
    add_node(grown, name)
    grown.write()
    return grown


def without_node(federation: Federation, name: str) -> Federation:
    """The federation with a node's key refused; the node's number stays its own."""
    if name not in federation.nodes:
        raise ConfigError(f"node={name!r} should be one of the federation's{suggestion(name, federation.nodes)}")
    if federation.insecure:
        raise ConfigError("an insecure federation should be made anew: it has no keys to refuse")
    smaller = replace(federation, revoked=tuple(dict.fromkeys([*federation.revoked, name])))
    smaller.write()
    return smaller


def environment(federation_home: Path) -> dict[str, str]:
    """What Flower's processes get: a home of their own, no calls home, this very program."""
    import sys

    import clusterfl

    here = str(Path(clusterfl.__file__).resolve().parent.parent)
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "FLWR_HOME": str(federation_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
    }
