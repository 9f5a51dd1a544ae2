"""Metrics of one client: against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from clusterfl import keys
from clusterfl.scores import (
    ACCURACY,
    RMSE,
    Metric,
    auc,
    class_counts,
    class_f1,
    classification,
    f1,
    label,
    log_loss,
    r2,
    told,
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 30), classes=st.integers(2, 4), coarse=st.booleans())
def test_auc_and_log_loss(seed: int, n: int, classes: int, coarse: bool) -> None:
    """Ties too: coarse logits give many equal probabilities."""
    logits = 2.0 * keys.normal(keys.key(seed), n, classes)
    logits = logits.round() if coarse else logits
    y = keys.randint(keys.key(seed + 1), classes, n)
    p = torch.softmax(logits.double(), dim=1).numpy()
    assert float(log_loss(logits, y)) == pytest.approx(sklearn_log_loss(y, p, labels=range(classes)), rel=1e-6)
    have = [c for c in range(classes) if 0 < int((y == c).sum()) < n]
    if not have:
        assert math.isnan(float(auc(logits, y)))
        return
    expected = np.mean([roc_auc_score((y == c).numpy(), p[:, c]) for c in have])
    assert float(auc(logits, y)) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 20), several=st.booleans())
def test_r2(seed: int, n: int, several: bool) -> None:
    y = keys.normal(keys.key(seed), n)
    out = (y + 0.5 * keys.normal(keys.key(seed + 1), n)).unsqueeze(1)
    assert float(r2(out, y)) == pytest.approx(r2_score(y.double(), out.double()), rel=1e-6, abs=1e-6)
    assert math.isnan(float(r2(out, torch.ones(n)))), "targets that do not differ explain nothing"


def test_a_model_may_answer_what_is_no_class() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    assert float(f1(logits, torch.tensor([0, 1]), classes=2)) == pytest.approx(1 / 3)  # 1, 0 and 0 of the third answer


def test_a_metric_has_a_direction() -> None:
    assert ACCURACY.reached(0.9, 0.9) and not ACCURACY.reached(0.89, 0.9)
    assert RMSE.reached(0.1, 0.1) and not RMSE.reached(0.11, 0.1) and not RMSE.reached(math.nan, 0.1)
    assert ACCURACY.worst([0.2, 0.9]) == 0.2 and RMSE.worst([0.2, 0.9]) == 0.9 and math.isnan(RMSE.worst([]))
    assert RMSE.key("accuracy_mean") == "rmse_mean" and RMSE.key("intra_accuracy") == "intra_rmse"
    assert told({"metric": "rmse", "better": "lower"}) == RMSE and told({}) == ACCURACY
    assert label("log_loss") == "log loss" and label("rmse") == "RMSE"
    assert [m.better for m in classification(2)] == ["higher", "higher", "higher", "lower"]
    for wrong in ({"name": "a b"}, {"name": "a", "better": "up"}):
        with pytest.raises(ValueError, match="should be"):
            Metric(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_f1_of_a_client(pairs: list[tuple[int, int]], padding: int) -> None:
    """Classes that are neither answered nor true do not count, nor does padding."""
    y, said = np.array(pairs).T
    w = torch.tensor([1.0] * len(pairs) + [0.0] * padding)
    padded = (torch.tensor(np.append(t, np.full(padding, t[0]))) for t in (said, y))
    counts = class_counts(*padded, w, 6)
    assert float(class_f1(counts)) == pytest.approx(f1_score(y, said, average="macro"))
    few = class_counts(torch.tensor(said), torch.tensor(y.clip(max=2)), torch.ones(len(y)), 3)  # 3 and 4: no class
    assert float(class_f1(few)) == pytest.approx(f1_score(y.clip(max=2), said.clip(max=3), average="macro"))


def test_a_client_without_samples_has_no_f1() -> None:
    assert bool(class_f1(torch.zeros(3, 2, 4)).isnan().all())
