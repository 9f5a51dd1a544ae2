"""Engines carry out calls; methods never know which one it is."""

from __future__ import annotations

from clusterfl.engines.base import BaseEngine
from clusterfl.engines.flaky import Flaky
from clusterfl.engines.pool import Pool
from clusterfl.engines.ray import Ray
from clusterfl.engines.serial import Serial, Stacked
from clusterfl.engines.wire import Wire
from clusterfl.engines.worker import Plan

__all__ = ["BaseEngine", "Flaky", "Plan", "Pool", "Ray", "Serial", "Stacked", "Wire"]
