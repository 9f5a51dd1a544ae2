"""details.json: what a report shows beyond the tables, against the population and the models themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import clusterfl
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.runs import details
from clusterfl.runs.details import label_counts
from tests.runs.small_runs import SMALL


def test_details(tmp_path: Path) -> None:
    config = Config.load(None, [*SMALL, "method.name=ifca"])  # whose clients use their cluster's model as it is
    outcome = clusterfl.run(config, out=tmp_path)
    found = json.loads((tmp_path / "details.json").read_text())
    population, assign = outcome.population, outcome.records[-1].assign
    assert found["train"] == [30] * 10 and len(found["test"]) == 10
    assert found["config_sha256"] == Config.load(tmp_path / "config.toml").digest()
    labels = torch.tensor(found["labels"])
    assert all(torch.equal(labels[i], population.train.of(i)[1].bincount(minlength=10)) for i in range(10))
    for k, counts in found["cluster_labels"].items():
        assert counts == labels[:8][assign == int(k)].sum(dim=0).tolist()
    own = torch.tensor(found["cross"]).gather(1, assign.unsqueeze(1)).squeeze(1)
    assert torch.allclose(own.double(), outcome.records[-1].accuracy, atol=1e-6)
    modules = clusterfl.load_modules(tmp_path)
    for k, table in found["confusion"]["counts"].items():
        rows = torch.cat([population.test.rows_of(i) for i in (assign == int(k)).nonzero().flatten().tolist()]).unique()
        answers = modules[int(k)](population.test.x[rows]).argmax(1)
        expected = torch.zeros(10, 10, dtype=torch.int64)
        for y, a in zip(population.test.y[rows].tolist(), answers.tolist(), strict=True):
            expected[y, a] += 1
        assert table == expected.tolist()
    assert found["confusion"]["all"]


def test_large_runs_are_sampled_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "SAMPLES", 30)
    monkeypatch.setattr(details, "CELLS", 10)
    clusterfl.run(Config.load(None, SMALL), out=tmp_path)
    found = json.loads((tmp_path / "details.json").read_text())
    assert not found["confusion"]["all"] and found["labels"] is None and found["cross"] is None
    assert all(0 < sum(map(sum, table)) <= 30 for table in found["confusion"]["counts"].values())
    assert found["cluster_labels"]


def test_targets_that_are_no_classes_have_no_labels() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    population = Population.from_arrays([(x, y)], [(x, y)])
    assert label_counts(population) is not None
    object.__setattr__(population.train, "y", population.train.y.float())
    assert label_counts(population) is None
