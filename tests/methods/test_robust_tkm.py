"""Robust-TKM: one clustering of local models, robust training after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.engines.wrappers import Wrapper
from clusterfl.loop import Simulation
from clusterfl.method import Single
from clusterfl.methods import FedAvg, RobustTKM
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.aggregate import Mean, Median, Rule
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_one_cluster_and_the_mean_is_fedavg() -> None:
    task, population = small_task(), small_population()
    method = RobustTKM(k=1, local=LOCAL, erm_epochs=1, aggregate=Mean())
    start = method.init(task, Serial(task, population).cohort(torch.arange(12), keys.key(1)), keys.key(7))
    ours = play(method, Serial(task, population), 3, state=start)
    plain = play(FedAvg(LOCAL, "uniform"), Serial(task, population), 3, state=Single(row(start.centers, 0)))
    assert_equal(row(ours.centers, 0), plain.theta, "robust-tkm of one cluster and fedavg")


def test_the_clusters_are_found_once() -> None:
    task, population = small_task(), small_population()
    method = RobustTKM(k=2, local=LOCAL)
    assert population.truth is not None
    start = play(method, Serial(task, population), 0)
    assert clustering(start.assign, population.truth[:12]).ari == 1.0
    after = play(method, Serial(task, population), 3, state=start)
    assert torch.equal(after.assign, start.assign) and torch.equal(after.homes, start.homes)


def test_who_was_away_at_the_start_is_placed_later() -> None:
    task, population = small_task(), small_population()
    method = RobustTKM(k=2, local=LOCAL)
    away = Flaky(Serial(task, population), 0.0, frozenset({2, 7}))
    start = method.init(task, away.cohort(torch.arange(12), keys.key(1)), keys.key(7))
    assert (~start.known).nonzero().flatten().tolist() == [2, 7]
    assert torch.equal(play(method, away, 1, state=start).known, start.known)  # still away: the round goes on
    after = play(method, Serial(task, population), 1, state=start)
    assert bool(after.known.all()) and population.truth is not None
    assert clustering(after.assign, population.truth[:12]).ari == 1.0


class Noise(Wrapper):
    """Some clients send noise for a model."""

    def __init__(self, inner: Serial, ids: set[int]) -> None:
        super().__init__(inner)
        self.ids = ids

    def execute(self, call: Call) -> Iterator[Chunk]:
        for chunk in self.inner.execute(call):
            fields = dict(chunk.fields)
            theta = fields.get("theta")
            if isinstance(theta, dict) and not call.measure:
                theta = {n: t.clone() for n, t in theta.items()}
                for j, i in enumerate(call.ids[chunk.positions].tolist()):
                    for n, t in theta.items():
                        if i in self.ids:
                            t[j] = 3.0 * keys.normal(keys.fold_in(call.client_key(i), n), *t.shape[1:])
                fields["theta"] = theta
            yield Chunk(chunk.positions, fields)


@pytest.mark.parametrize("rule", [Median(), Mean()], ids=lambda rule: rule.name)
def test_rotations_with_attackers(rule: Rule) -> None:
    """One client of six in every cluster sends noise: k-means and the median do not notice, the mean does.

    Noise is as near to one cluster as to another, and may all go to one: only a rule that withstands nearly
    half of a cluster is safe from that.
    """
    population = build(DataConfig(clients=24, clusters=4, samples=100), keys.key(0))
    truth = population.truth
    assert truth is not None
    liars = {int((truth == k).nonzero()[0]) for k in range(4)}
    honest = torch.tensor([i for i in range(24) if i not in liars])
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    engine = Noise(Stacked(task, population), liars)
    method = RobustTKM(aggregate=rule)
    out = Simulation(method, population, engine, Schedule(5, eval_every=5)).run()
    assert clustering(out.served.index[honest], truth[honest]).ari == 1.0
    accuracy = float(out.records[-1].accuracy[honest].mean())
    assert accuracy > 0.85 if rule == Median() else accuracy < 0.75


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="k=13 should be between 1 and the number of clients, 12"):
        play(RobustTKM(k=13), Serial(small_task(), small_population()))
    with pytest.raises(ValueError, match=r"attackers=0\.6"):
        RobustTKM(attackers=0.6)
