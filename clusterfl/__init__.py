"""Clustered federated learning: one model per group of clients that belong together.

>>> import clusterfl
>>> population = clusterfl.Population.from_datasets(train, test)      # one Dataset per client
>>> outcome = clusterfl.run(population, module, clusterfl.METHODS["ifca"](k=4), rounds=20)
>>> outcome.accuracy.mean, outcome.served.index
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# names are looked up on first use: `import clusterfl` alone does not load PyTorch
_HOME = {
    "Client": "client",
    "Cohort": "client",
    "Config": "config",
    "METHODS": "methods",
    "MODELS": "models",
    "Method": "method",
    "Outcome": "loop",
    "Population": "data.population",
    "SGD": "parts.local",
    "Schedule": "loop",
    "Simulation": "loop",
    "Task": "task",
    "check_method": "testing",
    "load_models": "results",
    "load_modules": "results",
    "on_client": "client",
    "run": "api",
}
__all__ = [
    "METHODS",
    "MODELS",
    "SGD",
    "Client",
    "Cohort",
    "Config",
    "Method",
    "Outcome",
    "Population",
    "Schedule",
    "Simulation",
    "Task",
    "__version__",
    "check_method",
    "load_models",
    "load_modules",
    "on_client",
    "run",
]

if TYPE_CHECKING:
    from clusterfl.api import run
    from clusterfl.client import Client, Cohort, on_client
    from clusterfl.config import Config
    from clusterfl.data.population import Population
    from clusterfl.loop import Outcome, Schedule, Simulation
    from clusterfl.method import Method
    from clusterfl.methods import METHODS
    from clusterfl.models import MODELS
    from clusterfl.parts.local import SGD
    from clusterfl.results import load_models, load_modules
    from clusterfl.task import Task
    from clusterfl.testing import check_method


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clusterfl' has no attribute {name!r}")
    value = getattr(import_module(f"clusterfl.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
