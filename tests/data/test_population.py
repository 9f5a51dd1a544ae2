"""Populations: what fits together, and what does not."""

from __future__ import annotations

import pytest
import torch

from clusterfl.data.population import Population, Shards


def test_populations_refuse_what_does_not_fit() -> None:
    shards = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))])
    two = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))] * 2)
    with pytest.raises(ValueError, match="should equal"):
        Population(shards, two, 1, 2)
    with pytest.raises(ValueError, match="one per client"):
        Population(shards, shards, 1, 2, truth=torch.tensor([0, 1]))
