"""Losses of each sample: against PyTorch's own, for targets of any shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterfl import keys
from clusterfl.losses import REGRESSION
from clusterfl.scores import Metric
from clusterfl.task import Task

OUT = 3.0 * keys.normal(keys.key(0), 12)
THEIRS: dict[str, Any] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


@pytest.mark.parametrize("name", REGRESSION)
@pytest.mark.parametrize("shape", [(12,), (12, 1), (6, 2), (3, 2, 2)], ids=str)
def test_losses_of_numbers_are_pytorchs(name: str, shape: tuple[int, ...]) -> None:
    out, y = OUT.reshape(shape), keys.normal(keys.key(1), *shape)
    found = REGRESSION[name](out, y)
    assert found.shape == shape[:1]
    expected = THEIRS[name](out, y, reduction="none").reshape(shape[0], -1).mean(dim=1)
    torch.testing.assert_close(found, expected)


def test_a_column_of_outputs_meets_a_row_of_targets() -> None:
    """[B, 1] less [B] would be [B, B] differences."""
    y = keys.normal(keys.key(1), 12)
    torch.testing.assert_close(REGRESSION["mse"](OUT.unsqueeze(1), y), (OUT - y).square())
    with pytest.raises(ValueError, match=r"outputs=\(12,\) should be as many numbers as targets=\(6,\)"):
        REGRESSION["mse"](OUT, y[:6])


def test_weights_of_classes() -> None:
    logits, y = OUT.reshape(4, 3), torch.tensor([0, 2, 1, 2])
    task = Task(nn.Linear(2, 3), 3, class_weights=[0.5, 0.0, 2.0])
    each = F.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(task.per_sample(logits, y), each * torch.tensor([0.5, 2.0, 0.0, 2.0]))


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(1) - y).abs()


def test_what_a_task_learns() -> None:
    classes, numbers = Task(nn.Linear(2, 3), 3), Task(nn.Linear(2, 1), loss="huber")
    assert not classes.regression and numbers.regression and numbers.classes == 0
    assert [m.name for m in classes.metrics] == ["accuracy", "f1", "auc", "log_loss"]
    assert [m.name for m in numbers.metrics] == ["rmse", "mae", "r2"] and numbers.metric.better == "lower"
    assert Task(nn.Linear(2, 1), loss="mse", metric="r2").metric.name == "r2"
    own = Metric("far", lambda outputs, y: (outputs.squeeze(1) - y).abs().max(), "lower")
    task = Task(nn.Linear(2, 1), loss=absolute, metrics=[own], metric="far")
    assert task.metric is own and task.per_sample is absolute and task.regression
    assert [m.name for m in Task(nn.Linear(2, 1), loss=absolute, metrics=[own], metric="loss").metrics] == [
        "loss",
        "far",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": "mse", "classes": 3}, "loss='mse' should come without classes"),
        ({}, "loss='cross-entropy' should come with classes"),
        ({"loss": "l3"}, "loss='l3' should be one of 'cross-entropy', 'mse'"),
        ({"loss": "mse", "class_weights": [1.0]}, "class_weights should come with loss='cross-entropy'"),
        ({"classes": 3, "class_weights": [1.0, 2.0]}, "should be 3 numbers of at least 0"),
        ({"classes": 2, "class_weights": [1.0, -2.0]}, "should be 2 numbers of at least 0"),
        ({"loss": "mse", "metric": "accuracy"}, "metric='accuracy' should be one of 'rmse'"),
        ({"classes": 3, "metrics": [Metric("f1", lambda outputs, y: 0.0)]}, "should have names of their own"),
        ({"classes": 3, "metrics": [Metric("mine")]}, "should each have a function"),
    ],
)
def test_what_cannot_be_learnt(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Task(nn.Linear(2, 3), **given)
