"""Engines carry out calls; methods never know which one it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterfl.lazy import lazy

__all__ = ["BaseEngine", "Flaky", "Plan", "Pool", "Ray", "Serial", "Stacked", "Wire"]

if TYPE_CHECKING:
    from clusterfl.engines.base import BaseEngine
    from clusterfl.engines.chunks import Plan
    from clusterfl.engines.pool import Pool
    from clusterfl.engines.ray import Ray
    from clusterfl.engines.serial import Serial, Stacked
    from clusterfl.engines.wire import Wire
    from clusterfl.engines.wrappers.flaky import Flaky

__getattr__ = lazy(
    __name__,
    {
        "BaseEngine": "base",
        "Flaky": "wrappers.flaky",
        "Plan": "chunks",
        "Pool": "pool",
        "Ray": "ray",
        "Serial": "serial",
        "Stacked": "serial",
        "Wire": "wire",
    },
)
