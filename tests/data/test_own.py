"""A user's own folder or table, LEAF's synthetic tasks, and drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from clusterfl import keys
from clusterfl.data import synthetic
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.data.sources import load_source
from clusterfl.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
KEY = keys.key(0)


def made(**fields: Any) -> Population:
    return build(DataConfig(**fields), KEY)


def test_a_folder_is_one_client_per_file(tmp_path: Path) -> None:
    for i in range(4):
        np.savez(tmp_path / f"hospital_{i}.npz", x=np.full((10, 5), i + 0.5), y=np.arange(10) % 3)
    population = made(source=f"folder:{tmp_path}", clients=3, unseen=1)
    assert population.clients == 3 and population.unseen == 1 and population.truth is None
    assert population.input_shape == (5,) and population.classes == 3
    means = sorted(float(torch.cat([population.train.of(i)[0], population.test.of(i)[0]]).mean()) for i in range(4))
    assert means == [0.5, 1.5, 2.5, 3.5]  # floats are used as they are
    assert population.train.sizes.tolist() == [8] * 4 and population.test.sizes.tolist() == [2] * 4


def test_a_folder_with_tests_keeps_them(tmp_path: Path) -> None:
    for i in range(2):
        x = np.full((6, 8, 8), 10 * i, dtype=np.uint8)
        np.savez(tmp_path / f"{i}.npz", x_train=x, y_train=np.arange(6) % 2, x_test=x[:2] + 1, y_test=np.arange(2))
    population = made(source=f"folder:{tmp_path}", clients=0, normalize="unit")
    assert population.input_shape == (1, 8, 8)
    for i in range(2):
        train, test = population.train.of(i)[0], population.test.of(i)[0]
        assert len(train) == 6 and len(test) == 2
        torch.testing.assert_close(test[0] - train[0], torch.full((1, 8, 8), 1 / 255))


def test_a_folder_may_also_be_pooled_and_split_anew(tmp_path: Path) -> None:
    for i in range(3):
        x = RNG.integers(0, 255, (60, 8, 8), dtype=np.uint8)
        y = np.arange(60) % 4
        np.savez(tmp_path / f"{i}.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    population = made(source=f"folder:{tmp_path}", split="clusters", clients=4, samples=10)
    assert population.true_clusters == 4 and "split='natural' keeps them" in population.notes[0]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((3, 4)), "y": np.zeros(3)}, r"b\.npz: samples of shape \(4,\).*should be like those of a\.npz"),
        ({"x": np.zeros((3, 5)), "y": np.zeros(2)}, r"b\.npz: labels of shape \(2,\) should be one per sample"),
        ({"x": np.zeros((3, 5)), "y": np.full(3, 0.5)}, r"b\.npz: labels should be whole numbers"),
        ({"x": np.zeros((3, 5)), "y": np.full(3, -1)}, r"b\.npz: labels should be whole numbers from 0"),
        ({"data": np.zeros((3, 5))}, r"b\.npz should be .* it holds \['data'\] and not \['x', 'y'\]"),
    ],
)
def test_wrong_folders_name_the_file(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 5)), y=np.zeros(3))
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(DataError, match=says):
        load_source(f"folder:{tmp_path}")


def test_missing_own_data_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"should name a folder with one .npz file per client"):
        load_source(f"folder:{tmp_path}/no")
    with pytest.raises(DataError, match=r"should hold one .npz file per client, but has none"):
        load_source(f"folder:{tmp_path}")
    with pytest.raises(DataError, match=r"should name a .csv or .parquet file"):
        load_source("table:no.csv", tmp_path)


def table(split: bool) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "client": np.repeat(["ann", "bob", "cy"], 10),
            "age": np.arange(30.0),
            "label": np.tile(["yes", "no"], 15),
            "weight": RNG.normal(size=30),
        }
    )
    if split:
        frame["split"] = np.tile(["train"] * 7 + ["test"] * 3, 3)
    return frame


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("split", [False, True])
def test_a_table_is_one_client_per_name(tmp_path: Path, kind: str, split: bool) -> None:
    frame = table(split)
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    population = made(source=f"table:{path}", clients=0)
    assert population.clients == 3 and population.classes == 2 and population.input_shape == (2,)
    seen = set()
    for i in range(3):
        x, y = (torch.cat(pair) for pair in zip(population.train.of(i), population.test.of(i), strict=True))
        ages = sorted(x[:, 0].tolist())
        seen.add(ages[0])
        assert ages == [ages[0] + j for j in range(10)]
        assert torch.equal(y, 1 - x[:, 0].long() % 2)  # "no" is 0, "yes" is 1
    assert seen == {0, 10, 20}
    assert population.test.sizes.tolist() == ([3] * 3 if split else [2] * 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.rename(columns={"client": "clients"}), "'client' should be there; did you mean 'clients'"),
        (lambda f: f.assign(age="old"), "column 'age' should be numbers"),
        (lambda f: f.assign(age=[None, *range(29)]), "column 'age' should have no missing values"),
        (lambda f: f.assign(age=np.inf), "column 'age' should hold finite numbers only"),
        (lambda f: f[["client", "label"]], "there should be feature columns"),
        (lambda f: f.assign(split="validation"), "should hold only 'train' and 'test'"),
    ],
)
def test_wrong_tables_name_the_column(tmp_path: Path, change: Any, says: str) -> None:
    change(table(False)).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=says):
        load_source(f"table:{tmp_path / 't.parquet'}")


def test_damaged_tables_are_named(tmp_path: Path) -> None:
    table(False).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:500])
    (tmp_path / "t.csv").write_text("client,label,a\n1,2,3\n1,2\n")
    (tmp_path / "t.txt").write_text("client")
    for name in ("t.parquet", "t.csv", "t.txt"):
        with pytest.raises(DataError, match=f"{name} should be a whole"):
            load_source(f"table:{tmp_path / name}")


def test_synthetic_is_leaf_s_generator() -> None:
    clusters, sizes = np.array([0, 1, 0, 1]), np.array([4000, 4000, 50, 50])
    source = synthetic.generate("synthetic_argmax:20x5", clusters, sizes, KEY)
    assert source.shape == (20,) and source.groups_train is not None
    x = source.x_train[source.groups_train == 0]
    assert isinstance(x, np.ndarray)
    np.testing.assert_allclose(x.std(0), np.arange(1, 21) ** -0.6, rtol=0.06)


def test_synthetic_clusters_have_linear_models_of_their_own() -> None:
    """A linear model of some tasks serves the other tasks of their cluster, and those of another far less."""
    clusters = np.arange(40) % 2
    mine, others = np.split(np.argsort(clusters, kind="stable"), 2)
    same, other = [], []
    for seed in range(3):  # a single draw may have two centres close together
        source = synthetic.generate("synthetic_argmax:10x4", clusters, np.full(40, 60), keys.key(seed))
        x, y = np.asarray(source.x_train).reshape(40, 60, 10), source.y_train.reshape(40, 60)
        model = LogisticRegression(C=100, max_iter=100).fit(x[mine[:15]].reshape(-1, 10), y[mine[:15]].ravel())
        same.append(model.score(x[mine[15:]].reshape(-1, 10), y[mine[15:]].ravel()))
        other.append(model.score(x[others].reshape(-1, 10), y[others].ravel()))
    assert np.mean(same) > 0.8 and np.mean(same) - np.mean(other) > 0.3


def test_synthetic_normalises_over_samples_as_the_published_code() -> None:
    """The same draws give logits; LEAF's code takes exp, divides by the sum over samples, then the argmax."""
    many = synthetic.generate("synthetic", np.zeros(40, int), np.full(40, 200), KEY)
    few = synthetic.generate("synthetic_argmax", np.zeros(40, int), np.full(40, 200), KEY)
    assert np.array_equal(many.x_train, few.x_train)  # type: ignore[arg-type]

    def largest(source: Any) -> float:
        return float(np.mean([np.bincount(y).max() / 200 for y in source.y_train.reshape(40, 200)]))

    assert largest(many) < 0.4 < 0.6 < largest(few)


def test_synthetic_population() -> None:
    config = DataConfig(source="synthetic:20x5", clients=12, unseen=3, clusters=3, samples=40)
    population = build(config, KEY)
    assert population.clients == 12 and population.truth is not None and population.input_shape == (20,)
    assert np.bincount(population.truth[:12]).tolist() == [4, 4, 4]
    assert population.train.sizes.tolist() == [40] * 15 and population.test.sizes.tolist() == [10] * 15
    sizes = made(source="synthetic", clients=300).train.sizes
    assert int(sizes.max()) <= 800 and int(sizes.min()) >= 4 and len(sizes.unique()) > 30
    # the truth of a client is that of its task, whatever order clients are taken in
    source = synthetic.generate("synthetic:20x5", np.array([0, 1, 2]), np.full(3, 10), KEY)
    assert source.group_truth is not None and source.group_truth.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="should end in DIMSxCLASSES"):
        made(source="synthetic:20", clients=4)
    with pytest.raises(ConfigError, match="should be 'natural' or 'dirichlet' with source='synthetic'"):
        DataConfig(source="synthetic", split="clusters")


def test_synthetic_pool_is_dealt_out_under_renamed_labels() -> None:
    """FCCA's Synthetic: one linear rule for all, read through each cluster's own renaming of the labels."""
    fields: dict[str, Any] = {"split": "dirichlet", "alpha": 5.0, "shift": "permute_labels", "clients": 6}
    population = made(source="synthetic_argmax:10x4", clusters=2, samples=500, **fields)
    assert population.truth is not None and population.classes == 4
    scores = np.zeros((6, 6))
    for i in range(6):
        model = LogisticRegression(C=100, max_iter=200).fit(*population.train.of(i))
        scores[i] = [model.score(*population.test.of(j)) for j in range(6)]
    same = (population.truth[:, None] == population.truth).numpy()
    assert scores[same].min() > 0.75 and scores[~same].mean() < 0.5


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clusters": 2, "clients": 7},
        {"cluster_sizes": (0.7, 0.1, 0.1, 0.1)},
        {"split": "class_groups", "alpha": 0.4},
    ],
)
def test_drift_moves_clients_to_another_cluster_and_keeps_the_rest(fields: dict[str, Any]) -> None:
    population = made(**{"clients": 16, "unseen": 2, "drift_round": 5, **fields})
    assert population.drift is not None and population.truth is not None
    start, after = population.drift
    assert start == 5 and population.at(4) is population and population.at(5) is population.at(99) is after
    assert after.truth is not None and after.train.x is population.train.x  # one pool
    moved = torch.tensor(
        [not torch.equal(after.train.rows_of(i), population.train.rows_of(i)) for i in range(len(after.truth))]
    )
    assert torch.equal(moved, after.truth != population.truth)
    assert moved.any() and not moved[population.clients :].any()
    if not fields:
        assert int(moved.sum()) == 8
    # places are traded: the same shards, in another order
    assert sorted(after.train.sizes.tolist()) == sorted(population.train.sizes.tolist())
    assert made(clients=16).digest != made(clients=16, drift_round=5).digest != made(clients=16, drift_round=6).digest
    for i in range(len(after.truth)):
        x, y = after.train.of(i)
        assert len(x) == int(after.train.sizes[i]) and len(y)


def test_drift_needs_clusters() -> None:
    with pytest.raises(ConfigError, match="drift_round=3 should be unset where there is one cluster"):
        DataConfig(shift="none", drift_round=3)
