"""Trackers against their real local stores."""

from __future__ import annotations

import csv
import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfl
from clusterfl.callback import Callback
from clusterfl.config import Config
from clusterfl.errors import ClusterflError
from clusterfl.report.trackers import CSV, MLflow, TensorBoard, WandB, tracker

SMALL = ["rounds=2", "data.clients=4", "data.samples=20", "data.test_samples=40", "engine.name=serial"]
SMALL += ["method.name=ifca", "method.k=2"]


def run(folder: Path, *callbacks: Callback, rounds: int = 2, resume: bool = False) -> list[dict[str, Any]]:
    config = Config.load(None, [*SMALL, f"rounds={rounds}"])
    clusterfl.run(config, out=folder, callbacks=callbacks, resume=resume)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "scalars.csv"
    run(tmp_path / "run", CSV(path))
    rows = run(tmp_path / "run", CSV(path), rounds=3, resume=True)
    with path.open() as f:
        lines = list(csv.DictReader(f))
    for name in ("accuracy_mean", "bytes_up", "ari"):
        assert [float(line["value"]) for line in lines if line["name"] == name] == [row[name] for row in rows]
    assert {line["name"] for line in lines} >= {"cluster_0/accuracy_mean", "cluster_1/clients", "logged/stale"}
    sizes = [float(line["value"]) for line in lines if line["round"] == "3" and line["name"].endswith("/clients")]
    assert sum(sizes) == 4


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = run(tmp_path / "run", TensorBoard(tmp_path / "events"))
    found = EventAccumulator(str(tmp_path / "events")).Reload()
    for name in ("accuracy_mean", "loss_mean"):
        events = found.Scalars(name)
        assert [e.step for e in events] == [0, 1, 2]
        assert [e.value for e in events] == pytest.approx([row[name] for row in rows])
    assert "cluster_0/accuracy_mean" in found.Tags()["scalars"]
    told = found.Tensors("report/text_summary")[0].tensor_proto.string_val[0].decode()
    assert told == str((tmp_path / "run" / "report.html").resolve()) and Path(told).exists()


def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    rows = run(tmp_path / "run", MLflow(tmp_path / "store"))
    client = mlflow.tracking.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("clusterfl")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "accuracy_mean")
    assert {m.step: m.value for m in history} == {row["round"]: row["accuracy_mean"] for row in rows}
    assert found.data.params["method"] == "ifca" and found.data.params["method.k"] == "2"
    assert found.info.status == "FINISHED" and "cluster_0/accuracy_mean" in found.data.metrics
    assert [a.path for a in client.list_artifacts(found.info.run_id)] == ["report.html"]


def entries(log: bytes, block: int = 1 << 15) -> Iterator[bytes]:
    """The records of an offline store: LevelDB's log format after a head of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of it, or its last part
            yield whole
            whole = b""


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    from wandb.proto import wandb_internal_pb2 as records

    rows = run(tmp_path / "run", WandB(tmp_path / "store"))
    (log,) = (tmp_path / "store").rglob("run-*.wandb")
    found: list[Any] = []
    while not found or found[-1].WhichOneof("record_type") != "exit":  # a process of its own writes the last of it
        time.sleep(0.05)
        found = [records.Record.FromString(data) for data in entries(log.read_bytes())]
    history, artifacts = [], []
    for record in found:
        if record.WhichOneof("record_type") == "history":
            history.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item})
        elif record.WhichOneof("record_type") == "artifact" or record.request.HasField("log_artifact"):
            artifacts.append(record)
    assert [h["accuracy_mean"] for h in history] == [row["accuracy_mean"] for row in rows]
    assert "cluster_0/accuracy_mean" in history[-1] and artifacts


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_what_is_missing_is_named_before_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ClusterflError, match=rf"pip install 'clusterfl\[{name}\]'"):
        tracker(name, tmp_path)
    with pytest.raises(ClusterflError, match="did you mean 'mlflow'"):
        tracker("mlfow", tmp_path)
