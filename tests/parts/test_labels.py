"""Label ratios: against counting, whatever is padded."""

from __future__ import annotations

import numpy as np
import torch

from clusterfl import keys
from clusterfl.engines import Serial, Stacked
from clusterfl.methods.md_icfl import MDICFL
from clusterfl.parts.labels import label_ratios
from clusterfl.testing.small import CLASSES, CLIENTS, small_population, small_task
from tests.helpers import alone

KEY = keys.key(5)


def test_label_ratios_ignore_padding() -> None:
    population = small_population()
    for engine in (Serial(small_task(), population), Stacked(small_task(), population)):
        got = engine.cohort(torch.arange(CLIENTS), KEY).run(MDICFL().ratios)["p"]
        for i in range(CLIENTS):
            y = population.train.of(i)[1].numpy()
            np.testing.assert_allclose(got[i].numpy(), np.bincount(y, minlength=CLASSES) / len(y), atol=1e-6)


def test_label_ratios_of_a_client_without_data() -> None:
    assert torch.equal(label_ratios(alone(small_task(), (6,))), torch.zeros(CLASSES))
