"""Populations: what fits together, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from clusterfl.data.population import Population, Shards


def test_populations_refuse_what_does_not_fit() -> None:
    shards = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))])
    two = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))] * 2)
    with pytest.raises(ValueError, match="should equal"):
        Population(shards, two, 1, 2)
    with pytest.raises(ValueError, match="one per client"):
        Population(shards, shards, 1, 2, truth=torch.tensor([0, 1]))


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
    says = r"train\[1\]: label 5.29 of sample 2 should be a whole number, .* targets='numbers'"
    with pytest.raises(ValueError, match=says):
        of_targets([0, 1, 2], [0.0, 1.0, 5.29], **more)


def test_targets_are_finite() -> None:
    with pytest.raises(ValueError, match=r"train\[0\]: target nan of sample 1 should be a finite number"):
        of_targets([0.5, np.nan, 1.0])


def test_datasets_of_numbers() -> None:
    data = TensorDataset(torch.zeros(4, 2), torch.tensor([0.5, 1.5, 2.0, 3.25]))
    population = Population.from_datasets([data], [data])
    assert population.regression and population.train.y.tolist() == [0.5, 1.5, 2.0, 3.25]
