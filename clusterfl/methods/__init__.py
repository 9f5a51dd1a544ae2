"""The methods, one file each."""

from __future__ import annotations

from typing import Any

from clusterfl.method import Method
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.local import Local

METHODS: dict[str, type[Method[Any]]] = {m.name: m for m in (Local, FedAvg, IFCA)}
