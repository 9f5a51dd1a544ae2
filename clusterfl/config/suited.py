"""A method that is chosen by its name alone runs: what it needs of data and model is filled in, and said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from clusterfl.config.methods import find_method
from clusterfl.config.presets import DEFAULT
from clusterfl.config.tables import Table
from clusterfl.data.registry import is_natural

log = logging.getLogger(__name__)

PUBLIC = 10  # public samples per class, FedDS's own number


def suited(table: Table, changes: Mapping[str, Any], *, demo: bool) -> Table:
    """The table with what its method needs and nobody chose. Of the demo's own keys the model may give way."""
    method, data = table.get("method"), table.get("data", {})
    name = method.get("name", DEFAULT) if isinstance(method, dict) else DEFAULT
    if not isinstance(name, str) or not isinstance(data, dict):
        return table
    needs = find_method(name).needs
    out = dict(table)
    if "hidden layer" in needs and demo and "model" not in changes:
        out["model"] = {"name": "mlp", "widths": [64]}
        log.warning("%s needs a hidden layer: the model is mlp (64 wide), not the demo's mclr", name)
    if "public samples" in needs and "indicators" not in data and not is_natural(data.get("source", "digits")):
        out["data"] = {**data, "indicators": PUBLIC}
        log.warning("%s needs public samples: data.indicators=%d per class are taken out of the data", name, PUBLIC)
    return out
