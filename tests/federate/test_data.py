"""A node's own data: files, functions and parts of a population, with classes by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clusterfl.config import Config
from clusterfl.engines.flower.messages import Reading
from clusterfl.errors import DataError
from clusterfl.federate.data import Where, in_order, load

READING = Reading("symmetric", 0.25)


def test_pixels_and_their_own_test_part(tmp_path: Path) -> None:
    x = np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8)
    np.savez(tmp_path / "a.npz", x_train=x[:3], y_train=[10, 2, 10], x_test=x[3:], y_test=[7])
    got = load(Where("rome", str(tmp_path / "a.npz")), READING)
    assert got.x_train.shape == (3, 1, 8, 8) and got.x_train.min() == -1.0
    assert got.classes == ("2", "7", "10") and got.y_train.tolist() == [2, 0, 2] and got.y_test.tolist() == [1]


def test_a_test_part_is_held_out_and_stays_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(16.0).reshape(8, 2), y=["rose"] * 8)
    first, again = (load(Where("rome", str(tmp_path / "a.npz")), READING) for _ in range(2))
    assert len(first.y_train) == 6 and torch.equal(first.x_test, again.x_test)
    everything = torch.cat([first.x_train, first.x_test])
    assert everything[:, 0].sort().values.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_table_and_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,label,split,a,b\nrome,rose,train,1,2\noslo,iris,train,3,4\nrome,iris,test,5,6\n")
    got = load(Where("rome", str(path)), READING)
    assert got.x_train.tolist() == [[1.0, 2.0]] and got.classes == ("iris", "rose") and got.y_test.tolist() == [0]
    with pytest.raises(DataError, match="should name 'bern' in some rows"):
        load(Where("bern", str(path)), READING)


def test_a_function_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_.py").write_text("def load():\n    return [[0.0], [1.0], [2.0], [3.0]], ['a', 'b', 'a', 'b']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for right in ("mine_:load", f"{tmp_path / 'mine_.py'}:load"):
        assert load(Where("rome", right), READING).classes == ("a", "b")
    for wrong in ("mine_:other", "nowhere_:load", "plain"):
        with pytest.raises(DataError, match=f"data='{wrong}' should"):
            load(Where("rome", wrong), READING)


def test_of_what_is_everybodys_a_node_takes_its_own_part(tmp_path: Path) -> None:
    """A folder and a function as simulations take them."""
    code = "def wards():\n    return {'rome': ([[0.0], [1.0]], ['a', 'b']), 'oslo': ([[2.0], [3.0]], ['c', 'd'])}\n"
    (tmp_path / "wards_.py").write_text(code)
    wards = f"{tmp_path / 'wards_.py'}:wards"
    np.savez(tmp_path / "oslo.npz", x=[[2.0], [3.0]], y=["c", "d"])
    for data in (str(tmp_path), wards):
        got = load(Where("oslo", data), READING)
        assert got.classes == ("c", "d") and {*got.x_train.flatten().tolist(), *got.x_test.flatten().tolist()} == {2, 3}
    with pytest.raises(DataError, match="should have 'bern' among its clients: rome, oslo"):
        load(Where("bern", wards), READING)
    with pytest.raises(DataError, match=r"bern.npz' should be a file on the node"):
        load(Where("bern", str(tmp_path)), READING)


def test_a_function_that_fails_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "broken_.py").write_text("def load():\n    return 1 / 0\n")
    with pytest.raises(DataError, match="without arguments, but ZeroDivisionError"):
        load(Where("rome", f"{tmp_path / 'broken_.py'}:load"), READING)


def test_columns_by_other_names_and_of_words(tmp_path: Path) -> None:
    """What is wrong in others' rows is not this node's business, and its errors count its own rows."""
    path = tmp_path / "t.csv"
    path.write_text("town,ill,age,ward\noslo,no,,attic\nrome,no,30,icu\nrome,yes,40,er\nrome,yes,50,icu\n")
    reading = replace(READING, client="town", label="ill", categorical=("ward",))
    got = load(Where("rome", str(path)), reading)
    assert got.columns == ("age", "ward") and got.words == (("er", "icu"),)
    rows = torch.cat([got.x_train, got.x_test])
    assert sorted(rows.tolist()) == [[30.0, 0.0, 1.0], [40.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
    agreed = replace(reading, features=("ward", "age"), words=(("attic", "er", "icu"),))
    rows = torch.cat([(got := load(Where("rome", str(path)), agreed)).x_train, got.x_test])
    assert sorted(rows.tolist())[0] == [0.0, 0.0, 1.0, 30.0]
    for wrong, words in [
        (replace(agreed, words=(("er", "attic"),)), "rows of 'rome': column 'ward', row 1: the category 'icu'"),
        (replace(reading, categorical=("word",)), "categorical='word' should be a feature column; did you mean 'ward'"),
        (replace(reading, label="sick"), "a column 'sick' should be there"),
        (replace(reading, categorical=()), "column 'ward', row 1 should be a number, not 'icu'"),
    ]:
        with pytest.raises(DataError, match=words):
            load(Where("rome", str(path)), wrong)


def test_a_part_of_a_configs_population(tmp_path: Path) -> None:
    config = Config.load(None, ["data.clients=4", "data.samples=10", "data.unseen=0"])
    (tmp_path / "c.toml").write_text(config.toml())
    got = load(Where("rome", "list", str(tmp_path / "c.toml"), 2), READING)
    x, y = config.population().train.of(2)
    assert torch.equal(got.x_train, x) and torch.equal(got.y_train, y) and len(got.classes) == 10
    with pytest.raises(DataError, match="index=4 should be below"):
        load(Where("rome", "list", str(tmp_path / "c.toml"), 4), READING)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for n in (4, 8):
        np.savez(path, x=np.zeros((n, 2)), y=["rose"] * n)
        assert len(load(Where("rome", str(path)), READING).y_train) == n * 3 // 4


@pytest.mark.parametrize("x, y", [(np.zeros((3, 2)), [0, 1]), (np.full((2, 2), np.nan), [0, 1])])
def test_what_cannot_be_samples_is_refused(x: np.ndarray, y: list[int], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match="should be"):
        load(Where("rome", str(tmp_path / "a.npz")), READING)


def test_targets_that_are_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=[0.5, 1.5, 2.5, 3.5])
    got = load(Where("rome", str(tmp_path / "a.npz")), Reading("symmetric", 0.25, numbers=True))
    assert got.classes == () and got.y_train.dtype == torch.float32 and got.renamed(()) is got
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 2)), y=["rose", "tulip"])
    with pytest.raises(DataError, match="targets should be numbers"):
        load(Where("rome", str(tmp_path / "b.npz")), Reading("symmetric", 0.25, numbers=True))


def test_names_are_agreed_on_by_their_numbers_or_the_alphabet() -> None:
    assert in_order({"10", "9", "-1"}) == ("-1", "9", "10")
    assert in_order({"b", "10", "a"}) == ("10", "a", "b")


def test_labels_become_those_agreed_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=["rose", "tulip", "rose", "rose"])
    got = load(Where("rome", str(tmp_path / "a.npz")), READING)
    renamed = got.renamed(("iris", "rose", "tulip"))
    assert sorted([*renamed.y_train.tolist(), *renamed.y_test.tolist()]) == [1, 1, 1, 2]
    with pytest.raises(DataError, match=r"its classes \['tulip'\] should be among"):
        got.renamed(("iris", "rose"))
