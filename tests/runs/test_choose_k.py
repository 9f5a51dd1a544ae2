"""The number of clusters is found where there are some, and 1 where there are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.client import Client, Shard
from clusterfl.engines import Serial, Stacked
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.parts.local import SGD
from clusterfl.runs.choose_k import View, advise, choose_k, half, prediction_strength
from clusterfl.runs.choose_k_fesem import Trial, choose_by_fesem, elbow, held_out
from clusterfl.testing.small import small_population, small_task

ROOT_CONFIG = ["--set", "data.unseen=0"]


def test_engines_agree_on_ragged_clients() -> None:
    rule = SGD(lr=0.1, batch=5)
    serial, stacked = (
        choose_k(make(small_task(), small_population()), rule, [1, 2, 3], keys.key(0)) for make in (Serial, Stacked)
    )
    assert serial.k == stacked.k == 2
    assert [v.stability for v in serial.views] == [v.stability for v in stacked.views]


def test_halves_share_no_sample_and_leave_none_out() -> None:
    rows = torch.arange(10, 17)
    shard = Shard(torch.zeros(20, 1), torch.zeros(20, dtype=torch.int64), rows, 7)
    me = Client(small_task(), shard, shard, keys.key(0), smallest=7)
    first, second = half(me, 0).train, half(me, 1).train
    assert sorted([*first.rows.tolist(), *second.rows.tolist()]) == rows.tolist()
    assert (first.n, second.n) == (4, 3)


def test_prediction_strength_by_hand() -> None:
    a, b = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 2, 0, 0, 3])
    assert prediction_strength(a, a) == 1.0
    assert prediction_strength(a, b) == pytest.approx(1 / 3), "of the pairs of the first cluster one in three stays"
    assert prediction_strength(a, np.array([1, 1, 1, 0, 0, 0])) == 0.0, "the one that was alone is not any more"


def test_the_largest_stable_number_is_advised() -> None:
    views = [View(k, s, None, 1.0, None) for k, s in ((1, 1.0), (2, 0.95), (3, 0.5), (4, 0.82), (5, 0.79))]
    assert advise(views).k == 4
    assert advise([replace(v, stability=0.1 * v.k) for v in views[1:]]).k == 5, "else the most stable"


def test_fesems_way_finds_two_groups_on_held_out_samples() -> None:
    """Section 5.2: a few rounds with every K on a sample of clients, and the best of them."""
    population, task = small_population(), small_task()
    some = held_out(population, 8, keys.key(1))
    assert some.clients == 8 and some.unseen == 0
    for i in range(8):
        train, test = ({x.numpy().tobytes() for x in side.of(i)[0]} for side in (some.train, some.test))
        assert test and not train & test
    rule = SGD(lr=0.1, batch=10, epochs=3)
    found = choose_by_fesem(population, lambda p: Serial(task, p), rule, [1, 2, 3], 0, sample=12)
    assert found.k == 2 and [t.k for t in found.trials] == [1, 2, 3]
    assert found.trials[0].score < found.trials[1].score - 0.2
    assert all(t.distance > 0 for t in found.trials)
    with pytest.raises(ValueError, match="k=13 should be at most the 12 clients"):
        choose_by_fesem(population, lambda p: Serial(task, p), rule, [13], 0, sample=60)


def test_the_other_criterion_is_the_elbow_of_distances() -> None:
    """Section 5.2's "or intra-cluster distance": its least value would always be the largest K's."""

    def chosen(*distances: float) -> int:
        return elbow([Trial(k, 0.5, d) for k, d in enumerate(distances, start=1)]).k

    assert chosen(10.0, 4.0, 3.5, 3.1, 2.9) == 2 and chosen(10.0, 8.0, 2.0, 1.8) == 3
    assert chosen(4.0, 3.0, 2.0, 1.0) == 1, "no elbow: as few as there can be"
    assert chosen(1.0, 2.0, 3.0) == 1, "it does not fall"
    population, task, rule = small_population(), small_task(), SGD(lr=0.1, batch=10, epochs=3)
    found = choose_by_fesem(
        population, lambda p: Serial(task, p), rule, [1, 2, 3, 4], 0, sample=12, criterion="distance"
    )
    assert found.k == elbow(found.trials).k and "the distance within" in found.reason
    with pytest.raises(ValueError, match="three numbers of clusters"):
        choose_by_fesem(population, lambda p: Serial(task, p), rule, [1, 2], 0, sample=12, criterion="distance")


def test_trials_of_fesem_under_privacy_share_no_noise() -> None:
    """With one seed for all, what a client sent in two trials differed by no noise, and the ledger charged it once."""
    pytest.importorskip("dp_accounting")
    seen: list[int] = []

    class Watched(Private):
        def change(self, call: Call, chunk: Chunk) -> Chunk:
            seen.extend(int(call.client_key(int(call.ids[p]))) for p in chunk.positions)
            return super().change(call, chunk)

    private = PrivacyConfig(clip=0.5, noise_multiplier=4.0)
    found = choose_by_fesem(
        small_population(), lambda p: Watched(Serial(small_task(), p), private), SGD(), [1, 2, 3], 0, sample=12
    )
    assert len(seen) == len(set(seen)), "every upload has noise of its own"
    assert found.privacy is not None and found.privacy.uploads == len(seen) // 12 and found.privacy.epsilon > 0
