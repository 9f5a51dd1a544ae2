"""Populations: what fits together, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial
from clusterfl.errors import DataError
from clusterfl.loop import Simulation
from clusterfl.methods import FedAvg
from clusterfl.record import Schedule
from clusterfl.task import Task


def test_populations_refuse_what_does_not_fit() -> None:
    shards = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))])
    two = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))] * 2)
    with pytest.raises(ValueError, match="should equal"):
        Population(shards, two, 1, 2)
    with pytest.raises(ValueError, match="one per client"):
        Population(shards, shards, 1, 2, truth=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="names=2 entries should be one per client"):
        Population(shards, shards, 1, 2, names=("a", "b"))
    with pytest.raises(ValueError, match="names='a' should be the name of one client"):
        Population(two, two, 2, 2, names=("a", "a"))
    with pytest.raises(ValueError, match="class_names=1 names should be one per class"):
        Population(shards, shards, 1, 2, class_names=("a",))


def arrays(y: Any, x: Any = None) -> list[tuple[Any, Any]]:
    """Three clients with the same labels, and as many samples."""
    return [(np.zeros((len(y), 2)) if x is None else x, y)] * 3


def test_clients_and_classes_have_names() -> None:
    parts = arrays(["rose", "lily", "rose"])
    made = Population.from_arrays(parts, parts, names=["a", "b", "c"], unseen=1)
    assert made.names == ("a", "b", "c") and made.class_names == ("lily", "rose") and made.classes == 2
    assert made.train.of(0)[1].tolist() == [1, 0, 1] and made.class_name(1) == "rose"
    given = Population.from_arrays(parts, parts, class_names=["rose", "lily", "iris"])
    assert given.names == ("client-00", "client-01", "client-02") and given.classes == 3
    assert given.train.of(0)[1].tolist() == [0, 1, 0]
    said = repr(made)
    assert "2 clients that train and 1 unseen (a, b, c)" in said and "2 classes (lily, rose)" in said
    assert made.digest != given.digest  # other codes are other data
    renamed = Population.from_arrays(parts, parts, names=["x", "y", "z"], unseen=1)
    assert renamed.digest == made.digest  # names are not


def test_whole_numbers_stay_whole_and_bytes_become_floats() -> None:
    for kind, becomes in ((np.int64, torch.int64), (np.int32, torch.int64), (np.uint8, torch.float32)):
        parts = arrays([0, 1], np.array([[3, 4], [5, 6]], dtype=kind))
        made = Population.from_arrays(parts, parts)
        assert made.train.x.dtype == becomes and made.train.of(0)[0].tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("y", "more", "says"),
    [
        (
            [0, 1, 5.29],
            {"targets": "classes"},
            'train row 2: the label 5.29 should be a class .*loss = "mse"',
        ),
        ([0, np.nan, 1], {}, "train row 1: the label nan should be a class"),
        ([0, -1, 1], {}, "train row 1: the label -1 should be a class number from 0"),
        ([1, 2, 3], {}, "train row 0: labels should start at 0, but nobody's does; subtract 1"),
        ([1, 2, 3], {"classes": 3}, "train row 2: the label 3 should be below the number of classes, 3"),
        ([0, 1, 2], {"class_names": ["a", "b"]}, "train row 2: the label 2 should be below the number of classes, 2"),
        (["a", "b", "x"], {"class_names": ["a", "b"]}, "train row 2: the class 'x' should be a known one"),
    ],
)
def test_labels_that_are_no_classes_are_refused_by_client_and_row(y: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Population.from_arrays(arrays(y), arrays(y), **more)


def test_samples_that_are_not_finite_are_refused_by_client_and_row() -> None:
    good, bad = np.zeros((2, 2)), np.array([[0.0, 1.0], [np.inf, 1.0]])
    with pytest.raises(DataError, match="client 'b', test row 1: samples should be finite"):
        Population.from_arrays([(good, [0, 1])] * 2, [(good, [0, 1]), (bad, [0, 1])], names=["a", "b"])


def test_a_class_that_nobody_has_may_be_the_first() -> None:
    assert Population.from_arrays(arrays([1, 2]), arrays([1, 2]), classes=3).classes == 3


def test_datasets_are_not_truncated() -> None:
    whole = [TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))]
    assert Population.from_datasets(whole, whole, names=["ann"]).names == ("ann",)
    parts = [TensorDataset(torch.zeros(2, 3), torch.tensor([0.0, 5.29]))]
    assert Population.from_datasets(parts, parts).train.y.tolist() == pytest.approx([0.0, 5.29])
    with pytest.raises(DataError, match=r"the label 5\.29 should be a class"):
        Population.from_datasets(parts, parts, targets="classes")


X = np.zeros((3, 2))


def of_targets(*targets: Any, **more: Any) -> Population:
    parts = [(X, np.asarray(y)) for y in targets]
    return Population.from_arrays(parts, parts, **more)


def test_numbers_stay_numbers() -> None:
    """5.29 was once cut to class 5."""
    population = of_targets([5.29, 1.0, -2.5], [1.0, 2.0, 3.0])
    assert population.regression and population.classes == 0 and population.outputs == 1
    assert population.train.of(0)[1].tolist() == pytest.approx([5.29, 1.0, -2.5])
    several = of_targets(np.full((3, 2, 2), 0.5))
    assert several.outputs == 4 and several.train.y.shape == (3, 2, 2)
    asked = of_targets([0, 1, 2], targets="numbers")
    assert asked.regression and asked.train.y.dtype == torch.float32


def test_whole_numbers_are_classes_unless_said_otherwise() -> None:
    population = of_targets([0.0, 2.0, 1.0])
    assert not population.regression and population.classes == 3 and population.train.y.dtype == torch.int64


@pytest.mark.parametrize("more", [{"targets": "classes"}, {"classes": 6}], ids=str)
def test_a_fraction_is_no_class(more: dict[str, Any]) -> None:
    says = r"client 'client-01', train row 2: the label 5.29 should be a class .*numbers"
    with pytest.raises(DataError, match=says):
        of_targets([0, 1, 2], [0.0, 1.0, 5.29], **more)


def test_targets_are_finite() -> None:
    with pytest.raises(DataError, match="train row 1: the target nan should be a finite number"):
        of_targets([0.5, np.nan, 1.0])


def test_datasets_of_numbers() -> None:
    data = TensorDataset(torch.zeros(4, 2), torch.tensor([0.5, 1.5, 2.0, 3.25]))
    population = Population.from_datasets([data], [data])
    assert population.regression and population.train.y.tolist() == [0.5, 1.5, 2.0, 3.25]


def test_clients_with_the_very_same_rows_are_known() -> None:
    x, y = torch.arange(10.0).unsqueeze(1), torch.zeros(10, dtype=torch.int64)
    held = [[0, 1, 2], [2, 1, 0], [], [0, 1, 2], [0, 1], [], [9], [2, 1, 0]]
    shards = Shards.from_rows(x, y, [torch.tensor(rows, dtype=torch.int64) for rows in held])
    assert shards.same.tolist() == [0, 1, 2, 0, 4, 2, 6, 1]
    some = shards.select(torch.tensor([6, 0, 2, 3]))
    assert [some.x[some.rows_of(j)].flatten().tolist() for j in range(4)] == [[9], [0, 1, 2], [], [0, 1, 2]]


def test_a_pool_in_a_file_is_not_copied(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32).tofile(file)
    x, y = np.memmap(file, np.float32, "c", shape=(60, 6)), torch.arange(60) % 3
    rows = [np.arange(5 * i, 5 * i + 5) for i in range(12)]
    population = Population.from_pool(x, y, rows, [r[:2] for r in rows], classes=3, unseen=2)
    assert population.train.x.data_ptr() == x.ctypes.data == population.test.x.data_ptr()
    assert population.clients == 10 and population.unseen == 2 and population.train.of(3)[1].tolist() == [0, 1, 2, 0, 1]
    copied = Population.from_arrays([(x[r], y[r]) for r in rows], [(x[r[:2]], y[r[:2]]) for r in rows], classes=3)
    task = Task(nn.Linear(6, 3), 3)
    ends = [
        Simulation(FedAvg(), p, Serial(task, p), Schedule(2)).run().records[-1].accuracy[:10]
        for p in (population, replace(copied, clients=10))
    ]
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("x", "rows", "message"),
    [
        (np.zeros((4, 2)), [[0]], "x=float64 should be float32"),
        (np.zeros((3, 2), np.float32), [[0]], "y=4 targets should be as many as the samples, 3"),
        (np.zeros((4, 2), np.float32), [[4]], "train: row numbers should be at least 0 and below the 4"),
        (np.broadcast_to(np.float32(0), (4, 2)), [[0]], "x should be writeable memory"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused(x: Any, rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Population.from_pool(x, torch.zeros(4, dtype=torch.int64), rows, [[0]], classes=2)


@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_labels_of_a_pool_are_classes(label: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They once ended in an IndexError of the loss."""
    monkeypatch.setattr("clusterfl.data.arrays.PIECE", 4)
    x, y = np.zeros((11, 2), np.float32), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, label, 0])
    said = rf"y\[9\]: the label {label} should be at least 0 and below the number of classes, 3"
    with pytest.raises(DataError, match=said):
        Population.from_pool(x, y, [[0], [2]], [[1], [3]], classes=3)
    with pytest.raises(DataError, match=said):
        Population.from_rule(x, y, torch.add, torch.add, clients=4, samples=2, test_samples=1, classes=3)
    Population.from_pool(x, y.float(), [[9]], [[9]], classes=0)
