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
from clusterfl.data.user_data import Reading, read_samples
from clusterfl.errors import ConfigError, DataError

from .made import KEY, RNG, made


def test_a_folder_is_one_client_per_file(tmp_path: Path) -> None:
    for i in range(4):
        np.savez(tmp_path / f"hospital_{i}.npz", x=np.full((10, 5), i + 0.5), y=np.arange(10) % 3)
    population = made(source=f"folder:{tmp_path}", clients=3, unseen=1)
    assert population.clients == 3 and population.unseen == 1 and population.truth is None
    assert population.input_shape == (5,) and population.classes == 3
    means = [float(torch.cat([population.train.of(i)[0], population.test.of(i)[0]]).mean()) for i in range(4)]
    assert population.names == ("hospital_0", "hospital_1", "hospital_2", "hospital_3")
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
        (
            {"x": np.zeros((3, 5)), "y": np.full(3, 0.5)},
            r"b\.npz, row 0: the label 0.5 should be a class .*loss = \"mse\"",
        ),
        ({"x": np.zeros((3, 5)), "y": np.full(3, -1)}, r"b\.npz, row 0: the label -1 should be a class number from 0"),
        ({"x": np.zeros((3, 5), complex), "y": np.zeros(3)}, r"b\.npz: x should hold real numbers, not complex128"),
        (
            {"x": np.zeros((3, 5)), "y": np.full(3, 10**9)},
            r"b\.npz, row 0: the label 1000000000 should be below 1000000",
        ),
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
    assert population.names == ("ann", "bob", "cy") and population.class_names == ("no", "yes")
    assert population.feature_names == ("age", "weight")
    assert population.test.sizes.tolist() == ([3] * 3 if split else [2] * 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.rename(columns={"client": "clients"}), "'client' should be there; did you mean 'clients'"),
        (
            lambda f: f.assign(age="old"),
            "column 'age', row 1, client 'ann' should be a number, not 'old'; .*data.feature_columns",
        ),
        (lambda f: f.assign(age=[None, *range(29)]), "column 'age', row 1, client 'ann' should have a value"),
        (lambda f: f.assign(age=np.inf), "column 'age', row 1, client 'ann' should be a finite number, not inf"),
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


def test_class_numbers_beyond_63_bits_are_not_recoded(tmp_path: Path) -> None:
    """As -9223372036854775808 both were one class."""
    (tmp_path / "t.csv").write_text("client,label,a\nx,1,0\nx,99999999999999999999,1\nx,-99999999999999999999,1\n")
    with pytest.raises(DataError, match=r"row 2, client 'x': the label 100000000000000000000 should be below 2\^63"):
        load_source(f"table:{tmp_path / 't.csv'}")


def prices(path: Path) -> str:
    rows = [(f"city-{i}", float(j), 0.5 + j + 10 * i) for i in range(3) for j in range(10)]
    pd.DataFrame(rows, columns=["client", "area", "label"]).to_csv(path, index=False)
    return f"table:{path}"


def test_a_table_of_numbers(tmp_path: Path) -> None:
    """A column of floats is refused with the remedy, and used as it is with a loss of numbers."""
    name = prices(tmp_path / "prices.csv")
    with pytest.raises(
        DataError, match=r"row 1, client 'city-0': the label 0\.5 should be a class .*--set task\.loss=mse"
    ):
        load_source(name)
    source = load_source(name, reading=Reading(numbers=True))
    assert source.classes == 0 and source.y_train.dtype == np.float32
    assert sorted(source.y_train.tolist()) == sorted(0.5 + j + 10 * i for i in range(3) for j in range(10))
    population = build(DataConfig(source=name, clients=3), KEY, regression=True)
    assert population.regression and population.outputs == 1


def test_words_are_no_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"client": ["a", "b"], "x": [0.0, 1.0], "label": ["red", "blue"]}).to_csv(tmp_path / "t.csv")
    with pytest.raises(
        DataError, match="column 'label', row 1, client 'a': targets should be numbers for a loss of numbers"
    ):
        load_source(f"table:{tmp_path / 't.csv'}", reading=Reading(numbers=True))


def test_a_folder_of_numbers(tmp_path: Path) -> None:
    """Targets of any shape."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=RNG.normal(size=(10, 5)), y=RNG.normal(size=(10, 2)) + i)
    population = build(DataConfig(source=f"folder:{tmp_path}", clients=3), KEY, regression=True)
    assert population.outputs == 2 and population.train.y.shape == (24, 2)
    with pytest.raises(DataError, match=r"0\.npz: labels of shape \(10, 2\) should be one per sample"):
        load_source(f"folder:{tmp_path}")


def test_own_data_is_used_whole_and_in_its_order(tmp_path: Path) -> None:
    names = [f"h{i}" for i in (5, 3, *range(100, 128))]  # neither sorted nor as many as the demo has
    frame = pd.DataFrame({"client": np.repeat(names, 4), "label": np.arange(120) % 3, "f": np.arange(120.0)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    population = made(source=f"table:{tmp_path / 't.csv'}")
    assert population.clients == 30 and population.names == tuple(names) and not population.notes
    for i in range(30):
        x = torch.cat([population.train.of(i)[0], population.test.of(i)[0]])
        assert sorted(x.flatten().tolist()) == [4.0 * i + j for j in range(4)]
    limited = made(source=f"table:{tmp_path / 't.csv'}", clients=20, unseen=2)
    assert limited.names == tuple(names[:22])
    assert limited.notes == ("the first 22 of 30 clients are used; data.clients=0 uses all of them",)


def test_clients_that_are_too_small_are_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": ["a", "a", "b", "c", "c"], "label": [0, 1, 0, 1, 0], "f": range(5)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    population = made(source=f"table:{tmp_path / 't.csv'}")
    assert population.names == ("a", "c")
    assert population.notes == ("left out, without 2 samples: b (1 of 3)",)


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    frame = table(False).rename(columns={"client": "hospital", "label": "ill"}).assign(day="2024-01-01", old=True)
    frame["hospital"] = np.repeat(["007", "01", "1"], 10)  # text, though it looks like numbers
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = {"client_column": "hospital", "label_column": "ill", "feature_columns": ("old", "age")}
    population = made(source=f"table:{tmp_path / 't.csv'}", **columns)
    assert population.names == ("007", "01", "1") and population.feature_names == ("old", "age")
    assert population.train.of(0)[0][0].tolist()[0] == 1.0  # true is 1
    with pytest.raises(DataError, match=r"a column 'hospitl' should be there; did you mean 'hospital'.*client_column"):
        made(source=f"table:{tmp_path / 't.csv'}", **{**columns, "client_column": "hospitl"})
    with pytest.raises(DataError, match="column 'day', row 1, client '007' should be a number, not '2024-01-01'"):
        made(source=f"table:{tmp_path / 't.csv'}", **{**columns, "feature_columns": None})
    with pytest.raises(ConfigError, match="label_column='ill' should be unset unless source is table:PATH"):
        made(source="digits", label_column="ill")


def test_what_has_no_value_is_refused_by_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text, says in (
        ("client,label,f\na,x,1\na,,2\n", "column 'label', row 2, client 'a' should have a value"),
        ("client,label,f\na,x,1\n,x,2\n", "column 'client', row 2 should have a value"),
        ("client,label,f\na,0,1\na,1,\n", "column 'f', row 2, client 'a' should have a value"),
        (
            "client,label,f\na,0.5,1\na,1,1\n",
            r"column .label., row 1, client 'a': the label 0.5 should be a class",
        ),
        ("client,label,f\n", "should have rows"),
        ("client,label,f,f\na,0,1,2\n", "column 'f' should be there once"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=says):
            load_source(f"table:{path}")


def test_a_client_without_samples_is_left_out_by_name(tmp_path: Path) -> None:
    for name, n in (("a", 4), ("b", 0), ("c", 4)):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((n, 2)), y=np.arange(n) % 2)
    population = made(source=f"folder:{tmp_path}")
    assert population.names == ("a", "c") and "b (1 of 3)" in population.notes[0]


def test_text_labels_in_a_folder_are_classes(tmp_path: Path) -> None:
    for i, y in enumerate((["b", "a", "b"], ["c", "a", "b"])):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((3, 2)), y=np.array(y))
    source = load_source(f"folder:{tmp_path}")
    assert source.class_names == ("a", "b", "c") and source.y_train.tolist() == [1, 0, 1, 2, 0, 1]
    np.savez(tmp_path / "1.npz", x=np.array([[0, 1], [0, np.nan], [0, 1.0]]), y=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"1\.npz, row 1: samples should be finite"):
        load_source(f"folder:{tmp_path}")


def words_table(path: Path, wards: list[str]) -> str:
    rows = {"client": "ann", "age": 1.0, "ward": wards, "label": ["yes", "no"] * (len(wards) // 2), "smokes": True}
    pd.DataFrame(rows).to_csv(path, index=False)
    return f"table:{path}"


def test_columns_of_words_become_a_feature_per_category(tmp_path: Path) -> None:
    source = words_table(tmp_path / "t.csv", ["north", "south", "icu", "north"])
    population = made(source=source, categorical=("ward",))
    assert population.feature_names == ("age", "ward=icu", "ward=north", "ward=south", "smokes")
    assert population.categories == {"ward": ("icu", "north", "south")}
    x = torch.cat([population.train.of(0)[0], population.test.of(0)[0]])
    assert sorted(x[:, 1:4].tolist()) == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert x[:, [0, 4]].unique().tolist() == [1]
    with pytest.raises(DataError, match=r"categorical='wards' should be a feature column; did you mean 'ward'"):
        made(source=source, categorical=("wards",))
    with pytest.raises(ConfigError, match=r"categorical=.* should be unset unless source is table:PATH"):
        made(source="digits", categorical=("ward",))
    with pytest.raises(
        DataError, match=r"column 'ward', row 1, client 'ann' should be a number, not 'north'; .*data.categorical"
    ):
        made(source=source)


def test_new_words_are_refused_and_known_ones_keep_their_place(tmp_path: Path) -> None:
    words = {"ward": ("icu", "north", "south")}
    path = tmp_path / "new.csv"
    words_table(path, ["south", "icu"])
    names = ("age", "ward=icu", "ward=north", "ward=south", "smokes")
    assert read_samples(path, names, words).tolist() == [[1, 0, 0, 1, 1], [1, 1, 0, 0, 1]]
    words_table(path, ["south", "nroth"])
    with pytest.raises(DataError, match=r"column 'ward', row 2: the category 'nroth' .* did you mean 'north'"):
        read_samples(path, names, words)
    words_table(path, [f"w{i}" for i in range(1002)])
    with pytest.raises(DataError, match=r"1,002 different values and should have at most 1,000"):
        made(source=f"table:{path}", categorical=("ward",))
    pd.DataFrame({"client": "a", "w": "x", "w=x": 1.0, "label": ["y", "n"]}).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"the feature 'w=x' should be there once"):
        made(source=f"table:{path}", categorical=("w",))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_row_numbers_that_pandas_writes_are_no_feature(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = pd.concat([table(False), table(False)])  # an index that goes from 0 to 29 twice
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path) if kind == "csv" else frame.to_parquet(path)
    assert made(source=f"table:{path}").feature_names == ("age", "weight")
    assert "is taken for pandas' row numbers, no feature" in caplog.text
    name = "" if kind == "csv" else "__index_level_0__"
    assert made(source=f"table:{path}", feature_columns=(name, "age")).input_shape == (2,)
