"""The workload of many models, with few and small ones."""

from __future__ import annotations

import pytest
import torch

from clusterfl.bench.clustering import GROUPS, WAYS, agreement, clustering
from clusterfl.commands.bench import lines


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_found_and_what_it_took_is_said(way: str) -> None:
    """Above the number up to which all are compared with all."""
    found = clustering(way, 1_100, "mlp", (40,), apart=1.0)
    assert found.ari == 1.0 and found.cpu_seconds > 0.0 and found.beside_mb >= 0.0
    (line,) = lines("clustering", {"ways": [found.json()]})
    assert line.startswith(f"clustering 1,100 models of {found.parameters:,} parameters by {way}")


def test_a_cut_agrees_where_no_group_is_torn() -> None:
    truth = torch.arange(40) % GROUPS
    assert agreement((truth >= 2).long(), truth) == 1.0 == agreement(truth, truth)
    assert agreement((torch.arange(40) < 20).long(), truth) < 0.1
    assert agreement(torch.zeros(40, dtype=torch.int64), truth) == 0.0, "no cut at all"
