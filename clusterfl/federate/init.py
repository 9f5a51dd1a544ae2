"""A new federation's folder: certificates, the app, scripts and a page for whoever operates it."""

from __future__ import annotations

from dataclasses import fields

from clusterfl.config import GIVEN, Config
from clusterfl.data.config import DataConfig
from clusterfl.engines.config import EngineConfig
from clusterfl.errors import ConfigError
from clusterfl.federate.certificates import make_authority, make_server
from clusterfl.federate.folder import FILE, Federation
from clusterfl.federate.roster import add_node, write_script
from clusterfl.outside import is_outside
from clusterfl.runs.files import write_whole

# what of [data] counts where nodes bring their own
READ_BY = ("normalize", "test_fraction", "client_column", "label_column", "feature_columns", "categorical")

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
    for key, value, why in (("metric", config.task.metric, "measure it"), ("loss", config.task.loss, "train by it")):
        if value is not None and is_outside(value):
            raise ConfigError(f"task.{key}={value!r} should be one of the library's: nodes {why}")
    n = len(federation.nodes)
    table = config.table()
    if federation.demo:
        table["data"] = {**table["data"], "clients": n, "unseen": 0}
    else:
        kept = {name: getattr(config.data, name) for name in READ_BY}
        own = DataConfig(source=GIVEN, split="natural", shift="none", test="own", clusters=1, clients=n, **kept)
        table["data"] = {f.name: getattr(own, f.name) for f in fields(own) if getattr(own, f.name) is not None}
    made = Config.parse(table)
    engine = EngineConfig(name="flower", guard=config.engine.guard, clip_updates=config.engine.clip_updates)
    return made.model_copy(update={"engine": engine, "data": made.data.resolved() if federation.demo else made.data})


def _write_app(federation: Federation) -> None:
    federation.app.mkdir()
    write_whole(federation.app / "pyproject.toml", APP.encode())


def _write_scripts(federation: Federation) -> None:
    write_script(federation.folder / "start-server.sh", SERVER)
    lock = ", WITHOUT encryption" if federation.insecure else " (TLS, nodes prove themselves by their keys)"
    text = README.format(
        name=federation.folder.name,
        address=federation.address,
        lock=lock,
        nodes=", ".join(federation.nodes),
        run=federation.run,
    )
    write_whole(federation.folder / "README.md", text.encode())
