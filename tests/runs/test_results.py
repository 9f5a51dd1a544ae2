"""What a run leaves behind: every file, every column, the same each time."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import adjusted_rand_score, f1_score, normalized_mutual_info_score

import clusterfl
from clusterfl.config import Config
from clusterfl.runs.model_files import load_models, load_modules, read_manifest
from clusterfl.runs.results import plain
from tests.folders import contents

from .small_runs import Run, done

NEEDED = {"method", "seed", "rounds", "clients", "k", "ari", "nmi", "clusters_found", "assignments"}
NEEDED |= {"accuracy_mean", "accuracy_weighted", "accuracy_std", "accuracy_bottom5", "accuracy_top5_rounds"}
NEEDED |= {
    "f1_micro",
    "f1_macro",
    "intra_accuracy",
    "inter_accuracy",
    "unseen_accuracy",
    "bytes_up",
    "bytes_down",
    "seconds",
}


def test_every_file_is_there_and_nothing_else(ifca: Run) -> None:
    files = sorted(str(p.relative_to(ifca[0])) for p in ifca[0].rglob("*") if p.is_file())
    models = [f"models/cluster-{k}.safetensors" for k in range(4)]
    others = ["assignments.parquet", "config.toml", "data.json", "metrics.parquet", "rounds.jsonl", "summary.json"]
    assert files == sorted([*others, *models, "models/manifest.json"])


def test_summary(ifca: Run) -> None:
    folder, _, outcome, returned = ifca
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == returned and summary.keys() >= NEEDED
    assert summary["method"] == "ifca" and summary["rounds"] == 3 and summary["clients"] == 8 and summary["k"] == 4
    last = outcome.records[-1]
    assert summary["accuracy_mean"] == pytest.approx(float(last.accuracy.mean()))
    assert summary["assignments"] == {f"client-0{i}": int(k) for i, k in enumerate(last.assign)}
    assert list(summary["unseen_assignments"]) == ["client-08", "client-09"]
    assert list(summary["per_client"]) == [f"client-0{i}" for i in range(10)]
    third, ninth = summary["per_client"]["client-03"], summary["per_client"]["client-09"]
    assert third["accuracy"] == pytest.approx(float(last.accuracy[3])) and not third["unseen"]
    assert ninth["cluster"] == summary["unseen_assignments"]["client-09"] and ninth["unseen"]
    assert summary["unseen_accuracy"] == pytest.approx(float(outcome.unseen.mean()))  # type: ignore[union-attr]


def test_rounds(ifca: Run) -> None:
    folder, _, outcome, _ = ifca
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rows] == [0, 1, 2, 3]
    for row, record in zip(rows, outcome.records, strict=True):
        assert row["accuracy_mean"] == pytest.approx(float(record.accuracy.mean()))
        assert row["logged"] == record.logged and row["bytes_up"] == record.bytes_up
        assert row["clusters"] == len(record.assign.unique()) and row["moved"] == record.moved
    assert rows[-1]["bytes_up"] > rows[1]["bytes_up"] > 0


def test_parquet_tables_agree_with_the_summary(ifca: Run) -> None:
    folder, _, outcome, summary = ifca
    metrics = pq.read_table(folder / "metrics.parquet")
    assert metrics.column_names == ["round", "client", "cluster", "metric", "value"]
    rows = metrics.to_pylist()
    last = {r["client"]: r for r in rows if r["round"] == 3 and r["metric"] == "accuracy"}
    assert np.mean([r["value"] for r in last.values()]) == pytest.approx(summary["accuracy_mean"])
    assert {name: r["cluster"] for name, r in last.items()} == summary["assignments"]
    ends = {"f1", "auc", "log_loss", "unseen_accuracy"}  # of the last round only
    assert {r["metric"] for r in rows} == {"accuracy", "loss", *ends}
    assert {r["round"] for r in rows if r["metric"] in ends} == {3}
    unseen = [r["value"] for r in rows if r["metric"] == "unseen_accuracy"]
    assert np.mean(unseen) == pytest.approx(summary["unseen_accuracy"])
    assert len(rows) == 4 * 8 * 2 + 8 * 3 + 2

    table = pq.read_table(folder / "assignments.parquet")
    assert table.column_names == ["round", "client", "cluster", "true_cluster"]
    final = [r for r in table.to_pylist() if r["round"] == 3]
    found, true = [r["cluster"] for r in final], [r["true_cluster"] for r in final]
    assert summary["ari"] == pytest.approx(adjusted_rand_score(true, found))
    assert summary["nmi"] == pytest.approx(normalized_mutual_info_score(true, found))
    assert table.num_rows == 4 * 8 and len(outcome.records) == 4


def test_the_config_is_the_resolved_one(ifca: Run) -> None:
    folder, config, _, _ = ifca
    assert Config.load(folder / "config.toml") == config
    assert tomllib.loads((folder / "config.toml").read_text())["engine"]["name"] == "serial"


def test_the_same_config_writes_the_same(ifca: Run, tmp_path: Path) -> None:
    folder, config, _, _ = ifca
    clusterfl.run(Config.load(folder / "config.toml"), out=tmp_path)
    assert contents(tmp_path) == contents(folder)
    assert (tmp_path / "config.toml").read_bytes() == (folder / "config.toml").read_bytes() == config.toml().encode()


def test_f1_is_over_clients(ifca: Run) -> None:
    """FeSEM's micro and macro: clients weighted by their samples, and each alike."""
    folder, config, outcome, summary = ifca
    population, modules = config.population(), load_modules(folder)
    scores = []
    for i in range(8):
        x, y = population.test.of(i)
        scores.append(f1_score(y, modules[int(outcome.served.index[i])](x).argmax(1), average="macro"))
    assert summary["f1_macro"] == pytest.approx(np.mean(scores))
    assert summary["f1_micro"] == pytest.approx(np.average(scores, weights=population.train.sizes[:8]))


@pytest.mark.parametrize("name", ["local", "fedavg"])
def test_methods_without_clusters(name: str, tmp_path: Path) -> None:
    _, _, summary = done(tmp_path, f"method.name={name}", "data.unseen=0")
    assert summary.keys() >= NEEDED
    assert summary["k"] == summary["clusters_found"] == 1 and summary["unseen_accuracy"] is None
    assert summary["inter_accuracy"] is None and summary["ari"] == 0.0
    assert read_manifest(tmp_path)["personal"] is (name == "local")
    assert sorted(load_models(tmp_path)) == [0]


def test_without_truth_and_between_measurements(tmp_path: Path) -> None:
    _, _, summary = done(tmp_path, "method.name=fedavg", "data.shift=none", "data.clusters=1", "eval_every=2")
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [r["accuracy_mean"] is None for r in rows] == [False, True, False, False]
    values = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert sorted({r["round"] for r in values}) == [0, 2, 3]
    assert all(math.isfinite(r["value"]) for r in values)
    assert "NaN" not in (tmp_path / "summary.json").read_text() and summary["accuracy_mean"] is not None


def test_plain() -> None:
    assert plain({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": None}}) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"d": None},
    }
