"""Clustered federated learning: one model per group of clients that belong together.

>>> import clusterfl
>>> population = clusterfl.Population.from_datasets(train, test)      # one Dataset per client
>>> outcome = clusterfl.run(population, module, clusterfl.METHODS["ifca"](k=4), rounds=20)
>>> outcome.accuracy.mean, outcome.served.index
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterfl.lazy import lazy

__version__ = "0.1.0"

# names are looked up on first use: `import clusterfl` alone does not load PyTorch
_HOME = {
    "Callback": "callback",
    "CheckpointConfig": "config",
    "Client": "client",
    "Cohort": "cohort",
    "Config": "config",
    "METHODS": "methods",
    "MODELS": "models",
    "Method": "method",
    "Outcome": "record",
    "Population": "data.population",
    "SGD": "parts.local",
    "Stop": "callback",
    "Task": "task",
    "admit": "runs.admission",
    "check_method": "testing",
    "export": "runs.export",
    "load": "runs.trained",
    "load_models": "runs.model_files",
    "load_modules": "runs.model_files",
    "on_client": "message",
    "preset": "methods.presets",
    "run": "runs.run",
    "write_report": "report.page",
}
__all__ = [
    "METHODS",
    "MODELS",
    "SGD",
    "Callback",
    "CheckpointConfig",
    "Client",
    "Cohort",
    "Config",
    "Method",
    "Outcome",
    "Population",
    "Stop",
    "Task",
    "__version__",
    "admit",
    "check_method",
    "export",
    "load",
    "load_models",
    "load_modules",
    "on_client",
    "preset",
    "run",
    "write_report",
]

if TYPE_CHECKING:
    from clusterfl.callback import Callback, Stop
    from clusterfl.client import Client
    from clusterfl.cohort import Cohort
    from clusterfl.config import CheckpointConfig, Config
    from clusterfl.data.population import Population
    from clusterfl.message import on_client
    from clusterfl.method import Method
    from clusterfl.methods import METHODS
    from clusterfl.methods.presets import preset
    from clusterfl.models import MODELS
    from clusterfl.parts.local import SGD
    from clusterfl.record import Outcome
    from clusterfl.report.page import write_report
    from clusterfl.runs.admission import admit
    from clusterfl.runs.export import export
    from clusterfl.runs.model_files import load_models, load_modules
    from clusterfl.runs.run import run
    from clusterfl.runs.trained import load
    from clusterfl.task import Task
    from clusterfl.testing import check_method


__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
