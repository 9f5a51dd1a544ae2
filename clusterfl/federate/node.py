"""What a node is told by its start script, as the client app reads it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import clusterfl.methods  # noqa: F401 (messages name methods; only what is imported can be built from them)
from clusterfl.engines.flower.node import Node
from clusterfl.federate.data import Where, load
from clusterfl.federate.kept import Disk
from clusterfl.outside import load_outside


def node_of(settings: dict[str, Any]) -> Node:
    """The node that Flower's ``--node-config`` describes."""
    where = Where(
        str(settings["name"]),
        str(settings["data"]),
        str(settings.get("config", "")),
        int(settings.get("index", 0)),
    )
    disk = Disk(Path(str(settings["home"])))
    code = tuple(filter(None, str(settings.get("code", "")).split(",")))
    for reference in code:  # the operator says so: a message can name what is loaded and nothing else
        load_outside(reference)
    return Node(where.name, partial(load, where), disk, int(settings.get("least", 2)), code)
