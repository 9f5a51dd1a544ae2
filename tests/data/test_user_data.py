"""A user's own folder or table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from clusterfl.data.registry import load_source
from clusterfl.data.scenario import DataConfig, build
from clusterfl.errors import DataError

from .made import KEY, RNG, made


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
        ({"x": np.zeros((3, 5), complex), "y": np.zeros(3)}, r"b\.npz: x should hold real numbers, not complex128"),
        ({"x": np.zeros((3, 5)), "y": np.full(3, 10**9)}, r"labels up to 1000000000 should be below"),
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


def prices(path: Path) -> str:
    rows = [(f"city-{i}", float(j), 0.5 + j + 10 * i) for i in range(3) for j in range(10)]
    pd.DataFrame(rows, columns=["client", "area", "label"]).to_csv(path, index=False)
    return f"table:{path}"


def test_a_table_of_numbers(tmp_path: Path) -> None:
    """A column of floats is refused with the remedy, and used as it is with a loss of numbers."""
    name = prices(tmp_path / "prices.csv")
    with pytest.raises(DataError, match=r"should be whole numbers from 0, or words, not 0\.5; .*--set task\.loss=mse"):
        load_source(name)
    source = load_source(name, regression=True)
    assert source.classes == 0 and source.y_train.dtype == np.float32
    assert sorted(source.y_train.tolist()) == sorted(0.5 + j + 10 * i for i in range(3) for j in range(10))
    population = build(DataConfig(source=name, clients=3), KEY, regression=True)
    assert population.regression and population.outputs == 1


def test_words_are_no_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"client": ["a", "b"], "x": [0.0, 1.0], "label": ["red", "blue"]}).to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="column 'label' should be numbers for a loss of numbers"):
        load_source(f"table:{tmp_path / 't.csv'}", regression=True)


def test_a_folder_of_numbers(tmp_path: Path) -> None:
    """Targets of any shape."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=RNG.normal(size=(10, 5)), y=RNG.normal(size=(10, 2)) + i)
    population = build(DataConfig(source=f"folder:{tmp_path}", clients=3), KEY, regression=True)
    assert population.outputs == 2 and population.train.y.shape == (24, 2)
    with pytest.raises(DataError, match=r"0\.npz: labels of shape \(10, 2\) should be one per sample"):
        load_source(f"folder:{tmp_path}")
