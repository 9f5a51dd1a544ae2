"""K-means over weights, afresh every round."""

from __future__ import annotations

import torch

from clusterfl.engines import Serial
from clusterfl.methods import AWCFL, KMeans
from clusterfl.metrics import clustering
from clusterfl.testing.small import play, small_population, small_task

from .small import LOCAL


def test_it_finds_the_clusters_without_a_start_and_mixed_models_do_not_stop_it() -> None:
    population = small_population()
    truth = population.truth
    assert truth is not None
    for method in (KMeans(k=2, local=LOCAL), AWCFL(KMeans(k=2, local=LOCAL), beta=0.5, mix_for="both")):
        engine = Serial(small_task(), population)
        state = play(method, engine, 3)
        index = method.serve(state, torch.arange(engine.clients)).index
        assert clustering(index, truth[: engine.clients]).ari == 1.0


def test_centres_are_the_means_of_what_k_means_finds() -> None:
    engine = Serial(small_task(), small_population())
    first = KMeans(k=2, local=LOCAL)
    state = play(first, engine, 0)
    assert all(torch.equal(t[0], t[1]) for t in state.centers.values())  # everybody begins at W*
    after = play(first, engine, 1)
    assert len(after.assign.unique()) == 2
