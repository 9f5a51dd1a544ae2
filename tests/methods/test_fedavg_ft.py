"""FedAvg-FT: FedAvg's model, tuned where it is used."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Serial
from clusterfl.evaluate.served import evaluate
from clusterfl.evaluate.shared import score
from clusterfl.methods import FedAvg, FedAvgFT
from clusterfl.parts.local import SGD
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_the_global_model_is_fedavgs() -> None:
    check_same(FedAvgFT(LOCAL), FedAvg(LOCAL))


def test_tuning_helps_where_labels_differ_and_changes_no_state() -> None:
    task, population, ids = small_task(), small_population(), torch.arange(12)
    engine, method = Serial(task, population), FedAvgFT(LOCAL, tune_epochs=5)
    state = play(method, engine, rounds=5)
    served = method.serve(state, ids)
    own, before = evaluate(engine, method, served, ids, keys.key(0)), score(engine, served.models, served.index, ids)
    assert float(own.sums["correct"].sum()) > 1.2 * float(before.sums["correct"].sum())
    assert not engine.states()


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="tune_epochs=0"):
        FedAvgFT(tune_epochs=0)
