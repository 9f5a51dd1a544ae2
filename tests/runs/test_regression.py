"""Runs whose targets are numbers: planted maps are found, and every file and table says RMSE."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import clusterfl
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.errors import ConfigError
from clusterfl.methods import FCCA, IFCA, FedAvg
from clusterfl.runs.admission import admit
from clusterfl.runs.export import export
from clusterfl.runs.model_files import load_modules
from clusterfl.scores import Metric
from clusterfl.task import Task
from tests.commands.calls import call, words

ROOT = Path(__file__).parent.parent.parent
SCENARIO = str(ROOT / "scenarios" / "planted-regression.toml")
SMALL = ["rounds=4", "data.clients=12", "data.unseen=2", "engine.name=stacked", "local.lr=0.05"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ifca"
    clusterfl.run(Config.load(SCENARIO, SMALL), out=out)
    return out


@pytest.mark.parametrize("name", ["ifca", "fesem", "hypcluster", "fl-hc"])
def test_planted_maps_are_recovered(name: str) -> None:
    more = ["method.start_round=2"] if name == "fl-hc" else []
    outcome = clusterfl.run(Config.load(SCENARIO, [*SMALL, f"method.name={name}", *more]))
    assert outcome.clusters is not None and outcome.clusters.ari == 1.0 and outcome.served.k == 4
    assert outcome.metric.name == "rmse" and outcome.score.bottom5 >= outcome.score.mean
    assert outcome.inter is not None and outcome.intra < outcome.inter, "at home errors are smaller"
    assert np.isnan(outcome.accuracy.mean)


def test_what_a_run_leaves_behind(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metric"] == "rmse" and summary["better"] == "lower" and summary["f1_micro"] is None
    assert not [key for key in summary if "accuracy" in key] and summary["ari"] == 1.0
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rows[-1]["rmse_mean"] == pytest.approx(summary["rmse_mean"]) and rows[0]["rmse_mean"] > rows[-1]["rmse_mean"]
    best = sorted(r["rmse_mean"] for r in rows[1:])
    assert summary["rmse_top5_rounds"] == pytest.approx(np.mean(best[:5]))
    table = pq.read_table(folder / "metrics.parquet").to_pylist()
    assert {r["metric"] for r in table} == {"rmse", "mae", "loss", "r2", "unseen_rmse"}
    ends = {m: np.mean([r["value"] for r in table if r["metric"] == m and r["round"] == 4]) for m in ("mae", "r2")}
    assert {m: figures["mean"] for m, figures in summary["metrics"].items() if m in ends} == pytest.approx(ends)
    modules = load_modules(folder)
    assert len(modules) == 4 and modules[0](torch.zeros(2, 20)).shape == (2, 1)


def test_unseen_clients_are_admitted(folder: Path) -> None:
    got = admit(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert got["metric"] == "rmse" and got["rmse_mean"] == pytest.approx(summary["unseen_rmse"])
    assert all(c["rmse"] > 0 for c in got["clients"].values())


def test_numbers_are_predicted_and_exported(folder: Path, tmp_path: Path) -> None:
    """What ``predict`` says is what the client's exported model says in plain PyTorch."""
    trained, x = clusterfl.load(folder), np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    client = next(iter(trained.manifest["clients"]))
    found = trained.predict(client, x)
    assert found.shape == (3,) and found.dtype == np.float32
    with pytest.raises(ConfigError, match="this run learnt numbers"):
        trained.probabilities(client, x)
    np.savez(tmp_path / "x.npz", x=x)
    said = call("predict", str(folder), "--client", client, "--data", str(tmp_path / "x.npz")).stdout.splitlines()
    assert said[0] == "row,prediction" and [float(line.split(",")[1]) for line in said[1:]] == pytest.approx(found)
    manifest = export(trained, tmp_path / "out", client=client)
    assert (manifest["classes"], manifest["outputs"]) == (0, 1)
    linear, weights = nn.Linear(20, 1), load_file(tmp_path / "out" / manifest["models"][0]["file"])
    linear.load_state_dict({name.removeprefix("head."): t for name, t in weights.items()})
    assert linear(torch.from_numpy(x)).squeeze(1).tolist() == pytest.approx(found)


def test_the_number_of_clusters_by_the_smallest_error() -> None:
    words_ = words([*SMALL, "engine.name=serial", "local.epochs=4"])
    done = call("choose-k", SCENARIO, *words_, "--k", "1,4", "--by", "fesem", "--json")
    found = json.loads(done.stdout)
    assert found["k"] == 4 and found["metric"] == "rmse" and found["trials"][0]["score"] > found["trials"][1]["score"]


def test_the_command_line_says_rmse(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "t")
    sets = words([*SMALL, "rounds=2"])
    done = call("compare", SCENARIO, *sets, "--methods", "ifca", "--seeds", "0", "--reach", "2", "--out", out)
    assert (
        done.exit_code == 0
        and "RMSE" in done.stdout
        and "MB to RMSE 2" in done.stdout
        and "accuracy" not in done.stdout
    )
    result = json.loads((tmp_path / "t" / "compare.json").read_text())
    assert result["metric"] == "rmse" and result["methods"][-1]["bytes_to_rmse"] is not None
    rows = [json.loads(line) for line in (tmp_path / "t/runs/ifca-seed0/rounds.jsonl").read_text().splitlines()]
    there = [r["bytes_up"] + r["bytes_down"] for r in rows if r["rmse_mean"] <= 2.0]
    assert result["methods"][-1]["bytes_to_rmse"]["mean"] == there[0]
    assert "RMSE" in call("admit", str(folder)).stdout
    assert "targets are numbers" in call("inspect", SCENARIO).stdout
    assert call("inspect", SCENARIO, "--picture", str(tmp_path / "p.png")).exit_code == 2
    refused = call("compare", SCENARIO, "--methods", "md-icfl", "--out", str(tmp_path / "n"))
    assert refused.exit_code == 2 and "md-icfl compares models class by class" in refused.stderr


def test_a_sweep_puts_the_smallest_error_first(tmp_path: Path) -> None:
    grid = ["--grid", "local.lr=0.05,0.001", "--seeds", "0", "--out", str(tmp_path)]
    done = call("sweep", SCENARIO, *words([*SMALL, "rounds=2"]), *grid)
    assert done.exit_code == 0 and "RMSE" in done.stdout and "accuracy" not in done.stdout + done.stderr
    found = json.loads((tmp_path / "sweep.json").read_text())["points"]
    assert [p["settings"]["local.lr"] for p in found] == ["0.05", "0.001"] and found[0]["rmse_mean"] < found[1][
        "rmse_mean"
    ]


def test_a_metric_of_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "my_error.py"
    path.write_text(
        "def worst_error(outputs, y):\n    return (outputs.squeeze(1) - y).abs().max()\nworst_error.better = 'lower'\n"
    )
    config = Config.load(SCENARIO, [*SMALL, "rounds=1", f"task.metric={path}:worst_error"])
    outcome = clusterfl.run(config)
    assert outcome.metric.name == "worst_error" and outcome.metric.better == "lower"
    assert outcome.score.mean > outcome.figures["rmse"].mean > 0
    with pytest.raises(ConfigError, match=r"task\.metric=.* should be a function of outputs and targets"):
        (tmp_path / "my_number.py").write_text("five = 5\n")
        Config.load(SCENARIO, [f"task.metric={tmp_path}/my_number.py:five"])


def numbers() -> Population:
    rng = np.random.default_rng(0)
    parts = [(x := rng.normal(size=(20, 3)), x.sum(1) * (1 if i % 2 else -1) + 0.5) for i in range(6)]
    return Population.from_arrays(parts, parts)


def test_a_bare_module_and_a_named_model_learn_numbers() -> None:
    """Squared errors, unless a task says otherwise."""
    for model in (nn.Linear(3, 1), "mclr"):
        outcome = clusterfl.run(numbers(), model, FedAvg(), rounds=1, engine="serial")
        assert outcome.metric.name == "rmse" and np.isfinite(outcome.score.mean)


def pinball(outputs: Tensor, y: Tensor) -> Tensor:
    """Two quantiles of one target: outputs are not like targets."""
    off = y.unsqueeze(1) - outputs
    levels = torch.tensor([0.1, 0.9])
    return torch.maximum(levels * off, (levels - 1) * off).mean(dim=1)


def inside(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs[:, 0] <= y) & (y <= outputs[:, 1])).double().mean()


def test_a_loss_and_a_metric_of_ones_own() -> None:
    task = Task(nn.Linear(3, 2), loss=pinball, metrics=[Metric("inside", inside)], metric="loss")
    outcome = clusterfl.run(numbers(), task, IFCA(k=2), rounds=5, engine="stacked")
    assert outcome.metric.name == "loss" and set(outcome.figures) == {"loss", "inside"}
    means = [float(r.score("loss").mean()) for r in outcome.records]
    assert means[-1] < means[0] and 0.0 <= outcome.figures["inside"].mean <= 1.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"task\.classes=2 should fit the clients' targets, which are numbers: use loss"
    ):
        clusterfl.run(numbers(), Task(nn.Linear(3, 2), 2), FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match=r"method\.name='fcca' should be a method that needs no classes"):
        clusterfl.run(numbers(), nn.Linear(3, 1), FCCA(), rounds=1)
