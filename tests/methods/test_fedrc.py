"""FedRC: what its correction by label frequencies does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FedRC
from clusterfl.methods.fedrc import Concepts, frequencies
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.labels import one_hot_labels
from clusterfl.parts.local import SGD
from clusterfl.parts.mixture import e_step, m_step
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing.small import play, small_population, small_task

from . import golden
from .small import LOCAL

LOSSES = 4.0 * keys.uniform(keys.key(3), 3, 5)
LABELS = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])  # P(y; k)
Y = torch.tensor([0, 1, 0, 2, 1])
# `FedRC.update_sample_weights` and `update_learners_weights` of LINs-lab/FedRC, client.py, on LOSSES and LABELS from
# learners_weights (.5, .3, .2), and its soft counts `labels_learner_weights`
Q = [
    [0.036539, 0.571594, 0.363031, 0.125427, 0.196854],
    [0.088876, 0.112642, 0.210724, 0.125033, 0.240233],
    [0.874586, 0.315764, 0.426245, 0.749540, 0.562913],
]
PI = [0.258689, 0.155502, 0.585809]
COUNTS = [[0.399570, 0.768448, 0.125427], [0.299599, 0.352875, 0.125033], [1.300830, 0.878677, 0.749540]]

# `CentralizedAggregator.mix` over its `FedRC` clients, and run_experiment.py's label weights between rounds (its loop
# typed out), on the problem of golden.py with two clients, twice: shares of the clients, the two models, and P(y; k)
# after each round
AUTHORS_PI = ([[0.350380, 0.649620], [0.599814, 0.400186]], [[0.225142, 0.774858], [0.730658, 0.269342]])
AUTHORS_LABELS = (
    [[0.431238, 0.327050, 0.241712], [0.235413, 0.339618, 0.424970]],
    [[0.381921, 0.342443, 0.275637], [0.278883, 0.323125, 0.397992]],
)
AUTHORS_MODELS = (
    [[-0.411410, 0.049420, -0.007380, -0.377820, 0.029303, 0.075361, -0.364649, 0.784450, 0.622262, -0.398357,
      -0.081126, -0.276546, -0.264355, -0.136524, -0.138997],
     [0.334818, -0.651917, 0.877048, 0.451435, 0.474250, -0.377944, 0.087318, 0.086835, -0.581801, 0.746438,
      0.403321, -0.639374, -0.214863, -0.022544, 0.080690]],
    [[-0.407726, 0.021309, -0.160709, -0.427673, 0.156452, 0.064334, -0.519699, 0.835676, 0.491430, -0.359219,
      0.227254, -0.277919, -0.346050, -0.060558, -0.133268],
     [0.422268, -0.643571, 0.756949, 0.462321, 0.466789, -0.379593, 0.059480, 0.092716, -0.661790, 0.739740,
      0.551258, -0.656140, -0.262399, 0.019582, 0.086100]],
)  # fmt: skip


def test_two_rounds_are_those_of_the_authors_code() -> None:
    """But for P(y; k): here the last one counts as one sample more, which is taken out and put back."""
    engine, method, third = golden.engine(golden.TWO), FedRC(k=2, local=golden.STEPS), torch.full((2, 3), 1 / 3)
    state = Concepts(golden.models(2), torch.zeros(2, dtype=torch.int64), third)
    for r in (0, 1):
        before = state.labels
        state = method.round(state, engine.cohort(torch.arange(2), keys.key(r), r))
        pi = torch.stack([engine.states()[i]["pi"] for i in range(2)])
        torch.testing.assert_close(pi, torch.tensor(AUTHORS_PI[r]), atol=2e-6, rtol=0.0)
        np.testing.assert_allclose(golden.numbers(state.centers), AUTHORS_MODELS[r], atol=2e-6)
        samples = pi.mT @ torch.tensor(golden.TWO).float()  # of every cluster
        labels = torch.tensor(AUTHORS_LABELS[r])
        expected = before + samples.unsqueeze(1) * labels
        torch.testing.assert_close(state.labels, expected / (samples + 1.0).unsqueeze(1), atol=2e-6, rtol=0.0)
        state = replace(state, labels=labels)


def test_one_step_of_em_is_the_authors() -> None:
    task = small_task()
    shard = Shard(torch.zeros(5, 6), Y, torch.arange(5), 5)
    me = Client(task, shard, shard, keys.key(0), smallest=5)
    q = e_step(torch.tensor([0.5, 0.3, 0.2]), LOSSES + LABELS.log()[:, Y])
    torch.testing.assert_close(q, torch.tensor(Q), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(m_step(me, q), torch.tensor(PI), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(q @ one_hot_labels(me), torch.tensor(COUNTS), atol=1e-5, rtol=0.0)


def test_label_frequencies_by_hand() -> None:
    """The old row counts as one sample; a label that a cluster never sees keeps a trace."""
    found = frequencies(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([[2.5, 0.5], [0.0, 3.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25], [2.5e-9, 1.0]]))


def test_the_server_knows_how_often_a_cluster_sees_a_label() -> None:
    task, population = small_task(), small_population()
    method, engine = FedRC(k=2, local=LOCAL), Serial(task, population)
    start = play(method, engine, 0)
    key, ids = keys.fold_in(keys.key(7), "round", 0), torch.arange(12)
    got = engine.cohort(ids, key, 0).run(method.weigh_and_train, {"centers": start.centers, "labels": start.labels})
    # over clusters, the shares are those of the client's labels
    for i in range(12):
        y = population.train.of(i)[1]
        torch.testing.assert_close(got["labels"][i].sum(dim=0), torch.bincount(y, minlength=3) / len(y))
    assert float(got["labels"].flatten(1).norm(dim=1).max()) <= 1.0  # the bound that it declares
    engine.set_states({})
    after = method.round(start, engine.cohort(ids, key, 0))
    counts = torch.einsum("m,mkc->kc", population.train.sizes[:12].float(), got["labels"]) + 1 / 3
    torch.testing.assert_close(after.labels, counts / counts.sum(dim=1, keepdim=True))


def test_permuted_labels_are_found() -> None:
    """Concept shift: the same images under other names."""
    config = DataConfig(clients=16, unseen=4, clusters=4, shift="permute_labels", samples=60)
    population = build(config, keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    method = FedRC(local=SGD(lr=0.2, batch=10, epochs=2))
    found = Simulation(method, population, Stacked(task, population), Schedule(10, eval_every=10)).run()
    assert found.unseen_assign is not None
    assert clustering(torch.cat([found.served.index, found.unseen_assign]), population.truth).ari == 1.0
