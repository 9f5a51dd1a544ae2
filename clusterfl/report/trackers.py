"""Trackers that people already use, as callbacks: TensorBoard, MLflow, Weights & Biases, and a plain CSV file.

>>> clusterfl.run(config, out=folder, callbacks=[TensorBoard(folder / "tensorboard")])

Every one gets the same scalars after each round, of the whole and of each cluster, and the report once the run's folder
is complete. Their libraries are extras, imported when a tracker is made.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterfl.callback import Callback, Moment
from clusterfl.errors import ClusterflError, suggestion
from clusterfl.record import Outcome
from clusterfl.runs.progress import by_cluster
from clusterfl.runs.results import round_row


def scalars(moment: Moment) -> dict[str, float]:
    """All numbers of a round by name; what was not measured is not there."""
    row = round_row(moment.record, moment.population, moment.metric)
    logged: dict[str, Any] = row.pop("logged")
    row.pop("round")
    found = {name: value for name, value in row.items() if value is not None}
    clusters = by_cluster(moment.record, moment.metric.name) if moment.method.clustered else {}
    for k, (mean, size) in clusters.items():
        found[f"cluster_{k}/clients"] = size
        if math.isfinite(mean):
            found[f"cluster_{k}/{moment.metric.name}_mean"] = mean
    found |= {f"logged/{name}": value for name, value in logged.items() if value is not None}
    return {name: float(value) for name, value in found.items()}


def parameters(moment: Moment) -> dict[str, Any]:
    """What was run, in plain values."""
    schedule = moment.schedule
    hyper = {
        f"method.{n}": v if isinstance(v, bool | int | float | str) else str(v)
        for n, v in moment.method.hyper().items()
    }
    return {
        "method": moment.method.name,
        "data": moment.population.name,
        "clients": moment.population.clients,
        "rounds": schedule.rounds,
        "participation": schedule.participation,
        "seed": schedule.seed,
        **hyper,
    }


class Tracker(Callback):
    """Hands scalars on. ``report``: whether the run's page is drawn and handed on too."""

    def __init__(self, *, report: bool = True) -> None:
        self.report = report

    @abstractmethod
    def open(self, moment: Moment) -> None:
        """Begins, with :func:`parameters`."""

    @abstractmethod
    def log(self, round_: int, values: dict[str, float]) -> None: ...

    @abstractmethod
    def attach(self, report: Path) -> None:
        """Keeps the run's page."""

    @abstractmethod
    def close(self) -> None: ...

    def on_start(self, moment: Moment) -> None:
        self.open(moment)
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        self.log(moment.round, scalars(moment))

    def on_end(self, moment: Moment, outcome: Outcome) -> None:
        if not self.report:
            self.close()

    def on_saved(self, folder: Path) -> None:
        if self.report:
            from clusterfl.report.page import REPORT, write_report

            self.attach(folder / REPORT if (folder / REPORT).exists() else write_report(folder))
            self.close()


class CSV(Tracker):
    """A file with one line for each round and number: ``round,name,value``."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(report=False)
        self.path = Path(path)

    def open(self, moment: Moment) -> None:
        """A run that is taken up keeps the lines of the rounds before."""
        before = []
        if self.path.exists() and moment.round:
            with self.path.open(newline="", encoding="utf-8") as f:
                before = [line for line in list(csv.reader(f))[1:] if len(line) == 3 and int(line[0]) < moment.round]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="", encoding="utf-8") as f:
            csv.writer(f, lineterminator="\n").writerows([["round", "name", "value"], *before])

    def log(self, round_: int, values: dict[str, float]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as f:
            csv.writer(f, lineterminator="\n").writerows([round_, name, value] for name, value in values.items())

    def attach(self, report: Path) -> None:
        """A CSV file has no place for it."""

    def close(self) -> None:
        """Nothing is open between rounds."""


class TensorBoard(Tracker):
    """Event files; it has no place for a file, so it is told where the report lies."""

    def __init__(self, folder: str | Path, *, report: bool = True) -> None:
        super().__init__(report=report)
        _needed("tensorboard", "tensorboard")
        self.writer_of: Any = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.folder = Path(folder)

    def open(self, moment: Moment) -> None:
        self.writer = self.writer_of(str(self.folder), purge_step=moment.round)
        told = "\n".join(f"- {name}: `{value}`" for name, value in parameters(moment).items())
        self.writer.add_text("run", told, moment.round)

    def log(self, round_: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round_)
        self.writer.flush()

    def attach(self, report: Path) -> None:
        self.writer.add_text("report", str(report.resolve()))

    def close(self) -> None:
        self.writer.close()


class MLflow(Tracker):
    """A run in an MLflow experiment, by default in a local store of files."""

    def __init__(self, store: str | Path, *, experiment: str = "clusterfl", report: bool = True) -> None:
        super().__init__(report=report)
        self.mlflow: Any = _needed("mlflow", "mlflow")
        self.experiment = experiment
        self.store = str(store)
        if "://" not in self.store:
            self.store = Path(store).resolve().as_uri()
            os.environ.setdefault(
                "MLFLOW_ALLOW_FILE_STORE", "true"
            )  # it asks for a database; its light package has none

    def open(self, moment: Moment) -> None:
        self.client = self.mlflow.tracking.MlflowClient(tracking_uri=self.store)
        there = self.client.get_experiment_by_name(self.experiment)
        place = there.experiment_id if there else self.client.create_experiment(self.experiment)
        self.run = self.client.create_run(
            place, run_name=f"{moment.method.name}-seed{moment.schedule.seed}"
        ).info.run_id
        for name, value in parameters(moment).items():
            self.client.log_param(self.run, name, str(value)[:500])

    def log(self, round_: int, values: dict[str, float]) -> None:
        metric = self.mlflow.entities.Metric
        self.client.log_batch(self.run, metrics=[metric(n, v, 0, round_) for n, v in values.items()])

    def attach(self, report: Path) -> None:
        self.client.log_artifact(self.run, str(report))

    def close(self) -> None:
        self.client.set_terminated(self.run)


class WandB(Tracker):
    """A run of Weights & Biases: ``mode`` "offline" writes below ``folder`` and sends nothing."""

    def __init__(
        self, folder: str | Path, *, project: str = "clusterfl", mode: str = "offline", report: bool = True
    ) -> None:
        super().__init__(report=report)
        self.wandb: Any = _needed("wandb", "wandb")
        self.folder, self.project, self.mode = Path(folder), project, mode

    def open(self, moment: Moment) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        quiet = self.wandb.Settings(silent=True, console="off", disable_git=True)
        self.run = self.wandb.init(
            project=self.project, mode=self.mode, dir=str(self.folder), config=parameters(moment), settings=quiet
        )

    def log(self, round_: int, values: dict[str, float]) -> None:
        self.run.log(values, step=round_)

    def attach(self, report: Path) -> None:
        page = self.wandb.Artifact("report", type="report")
        page.add_file(str(report))
        self.run.log_artifact(page)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "csv": lambda folder: CSV(folder / "scalars.csv"),
    "mlflow": lambda folder: MLflow(folder / "mlruns"),
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "wandb": lambda folder: WandB(folder / "wandb"),
}


def tracker(name: str, folder: Path) -> Tracker:
    """A tracker by its name, with its store in a run's folder."""
    if name not in TRACKERS:
        raise ClusterflError(f"track={name} should be a known tracker{suggestion(name, TRACKERS)}")
    return TRACKERS[name](folder)


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ClusterflError(f"{extra} should be installed to track runs: pip install 'clusterfl[{extra}]'") from None
