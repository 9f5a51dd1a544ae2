"""Metrics against scikit-learn and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, f1_score, normalized_mutual_info_score

from clusterfl import keys
from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine, class_counts, class_f1
from clusterfl.method import Method, Served
from clusterfl.methods import IFCA, FedPer, Local
from clusterfl.metrics import Accuracy, bytes_to_accuracy, clustering, intra_inter, matched_accuracy, top_rounds
from clusterfl.parts.local import SGD
from clusterfl.testing import CLIENTS, play, small_population, small_task
from clusterfl.tree import row, take

labels = st.lists(st.integers(0, 3), min_size=2, max_size=12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=14))
@settings(max_examples=150, deadline=None)
def test_clustering(pairs: list[tuple[int, int]]) -> None:
    a, t = np.array(pairs).T
    got = clustering(torch.tensor(a), torch.tensor(t))
    assert got.ari == pytest.approx(adjusted_rand_score(t, a))
    assert got.nmi == pytest.approx(normalized_mutual_info_score(t, a))
    best = max(
        np.mean([dict(enumerate(names))[x] == y for x, y in zip(a, t, strict=True)])
        for names in itertools.permutations(range(4))
    )
    assert matched_accuracy(a, t) == got.matched == pytest.approx(best)


def test_ari_by_hand() -> None:
    """The pair-counting definition, on a case small enough to count."""
    a, t = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]
    pairs = list(itertools.combinations(range(6), 2))
    both = sum(a[i] == a[j] and t[i] == t[j] for i, j in pairs)
    ones, twos = sum(a[i] == a[j] for i, j in pairs), sum(t[i] == t[j] for i, j in pairs)
    expected = ones * twos / len(pairs)
    ari = (both - expected) / ((ones + twos) / 2 - expected)
    assert clustering(torch.tensor(a), torch.tensor(t)).ari == pytest.approx(ari)


def test_names_of_clusters_do_not_matter() -> None:
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    for names in itertools.permutations([5, 1, 9]):
        got = clustering(torch.tensor(names)[truth], truth)
        assert got.ari == got.nmi == got.matched == 1.0
    split = clustering(torch.tensor([0, 1, 2, 3, 4, 5]), truth)
    assert split.ari == 0.0 and split.matched == 0.5


def test_accuracy() -> None:
    per = torch.tensor([0.5, 1.0, torch.nan, 0.0, 0.25, 0.75, 0.5])
    sizes = torch.tensor([10, 20, 5, 30, 0, 10, 10])
    got = Accuracy.of(per, sizes)
    known = np.array([0.5, 1.0, 0.0, 0.25, 0.75, 0.5])
    assert got.mean == pytest.approx(known.mean())
    assert got.weighted == pytest.approx((5 + 20 + 0 + 0 + 7.5 + 5) / 80)
    assert got.std == pytest.approx(known.std())
    assert got.bottom5 == pytest.approx(np.sort(known)[:5].mean())
    assert math.isnan(Accuracy.of(torch.full((3,), torch.nan), torch.ones(3)).mean)


def test_top_rounds() -> None:
    assert top_rounds([0.1, 0.9, float("nan"), 0.5, 0.6, 0.7, 0.8]) == pytest.approx(0.7)
    assert top_rounds([0.2, 0.4]) == pytest.approx(0.3)
    assert math.isnan(top_rounds([]))


@given(labels, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_intra_inter(assign: list[int], seed: int) -> None:
    cross = torch.rand(len(assign), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    alive = sorted(set(assign))
    home: list[float] = []
    abroad: list[float] = []
    for j in alive:
        members = [i for i, a in enumerate(assign) if a == j]
        for k in alive:
            mean = float(np.mean([float(cross[i, k]) for i in members]))
            (home if j == k else abroad).append(mean)
    intra, inter = intra_inter(cross, torch.tensor(assign))
    assert intra == pytest.approx(np.mean(home))
    assert inter is None if len(alive) == 1 else inter == pytest.approx(np.mean(abroad))


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


def answers(method: Method, served: Served, engine: BaseEngine) -> list[tuple[np.ndarray, np.ndarray]]:
    """Labels and answers of every client under the model that it uses, found without the engine's scoring."""
    own = take(served.models, served.index)
    if served.personal:
        own = engine.cohort(torch.arange(CLIENTS), keys.key(3)).run(method.personalise, theta=own)["theta"]
    task, found = small_task(), []
    for i in range(CLIENTS):
        x, y = small_population().test.of(i)
        with torch.no_grad():
            found.append((y.numpy(), task.logits(row(own, i), x).argmax(1).numpy()))
    return found


@pytest.mark.parametrize("make", [Serial, Stacked, Wire, Pool], ids=lambda make: make.__name__)
def test_f1_in_every_engine(make: type[BaseEngine]) -> None:
    rule = SGD(batch=10)
    ids = torch.arange(CLIENTS)
    with make(small_task(), small_population()) as engine:
        for method in (IFCA(k=2, local=rule), Local(local=rule), FedPer(local=rule)):
            engine.set_states({})
            served = method.serve(play(method, engine), ids)
            found = answers(method, served, engine)
            scores = engine.evaluate(method, served, ids, keys.key(3), f1=True)
            plain = engine.evaluate(method, served, ids, keys.key(3))
            assert torch.equal(scores[:, :3], plain), "asking for more changes nothing else"
            for i, (y, said) in enumerate(found):
                assert float(scores[i, 0]) == (y == said).sum()
                assert float(scores[i, 3]) == pytest.approx(f1_score(y, said, average="macro"))


def test_bytes_to_accuracy() -> None:
    accuracy, spent = [0.1, 0.85, float("nan"), 0.9, 0.8, 0.95], [0, 10, 20, 30, 40, 50]
    assert bytes_to_accuracy(0.9, accuracy, spent) == 30
    assert bytes_to_accuracy(0.1, accuracy, spent) == 0
    assert bytes_to_accuracy(0.91, accuracy, spent) == 50
    assert bytes_to_accuracy(0.96, accuracy, spent) is None and bytes_to_accuracy(0.5, [], []) is None
