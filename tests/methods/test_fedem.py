"""FedEM: its mixture is fitted, served and scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.errors import ConfigError
from clusterfl.evaluate.served import evaluate, personal_models
from clusterfl.loop import Simulation
from clusterfl.method import Clusters, NotDefined
from clusterfl.methods import AWCFL, MCFL, FedAvg, FedEM, FedRC
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.parts.mixture import e_step, sample_losses
from clusterfl.record import Schedule
from clusterfl.runs.admission import admit
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

from . import golden
from .small import LOCAL

IDS = torch.arange(12)
# `CentralizedAggregator.mix` over `MixtureClient`s of omarfoq/FedEM on the problem of golden.py, two clients, twice:
# shares of the clients and the two models after each round; responsibilities of client 0 in the first
AUTHORS_Q = [
    [0.083122, 0.631565, 0.128413, 0.163577, 0.747224, 0.348379],
    [0.916878, 0.368435, 0.871587, 0.836423, 0.252776, 0.651621],
]
AUTHORS_PI = ([[0.350380, 0.649620], [0.599814, 0.400186]], [[0.212472, 0.787528], [0.695772, 0.304228]])
AUTHORS_MODELS = (
    [[-0.411410, 0.049420, -0.007380, -0.377820, 0.029303, 0.075361, -0.364649, 0.784450, 0.622262, -0.398357,
      -0.081126, -0.276546, -0.264355, -0.136524, -0.138997],
     [0.334818, -0.651917, 0.877048, 0.451435, 0.474250, -0.377944, 0.087318, 0.086835, -0.581801, 0.746438,
      0.403321, -0.639374, -0.214863, -0.022544, 0.080690]],
    [[-0.421473, 0.023803, -0.146586, -0.436336, 0.149667, 0.066301, -0.512377, 0.831105, 0.511962, -0.363680,
      0.205809, -0.264685, -0.327540, -0.060661, -0.151676],
     [0.425080, -0.645438, 0.734913, 0.458284, 0.470085, -0.379769, 0.057526, 0.095763, -0.667899, 0.741783,
      0.575249, -0.655149, -0.272221, 0.020585, 0.094918]],
)  # fmt: skip


def test_two_rounds_are_those_of_the_authors_code() -> None:
    engine, method = golden.engine(golden.TWO), FedEM(k=2, local=golden.STEPS)
    state = Clusters(golden.models(2), torch.zeros(2, dtype=torch.int64))
    x, y = golden.population(golden.TWO).train.of(0)
    shard = Shard(x, y, torch.arange(6), 6)
    me = Client(engine.task, shard, shard, keys.key(0), smallest=6)
    q = e_step(torch.full((2,), 0.5), sample_losses(me, state.centers))
    torch.testing.assert_close(q, torch.tensor(AUTHORS_Q), atol=2e-6, rtol=0.0)
    for r in (0, 1):
        state = method.round(state, engine.cohort(torch.arange(2), keys.key(r), r))
        pi = torch.stack([engine.states()[i]["pi"] for i in range(2)])
        torch.testing.assert_close(pi, torch.tensor(AUTHORS_PI[r]), atol=2e-6, rtol=0.0)
        np.testing.assert_allclose(golden.numbers(state.centers), AUTHORS_MODELS[r], atol=2e-6)


@pytest.mark.parametrize("cls", [FedEM, FedRC])
def test_one_model_is_fedavg(cls: type) -> None:
    check_same(cls(k=1, local=LOCAL), FedAvg(LOCAL))


def test_models_are_the_size_weighted_means_of_all_clients() -> None:
    task, population = small_task(), small_population()
    method, engine = FedEM(k=2, local=LOCAL), Serial(task, population)
    start = play(method, engine, 0)
    key = keys.fold_in(keys.key(7), "round", 0)
    after = method.round(start, engine.cohort(IDS, key, 0))
    engine.set_states({})
    got = engine.cohort(IDS, key, 0).run(method.weigh_and_train, {"centers": start.centers})
    share = (population.train.sizes[:12] / population.train.sizes[:12].sum()).double()
    for name, t in got["theta"].items():
        expected = torch.einsum("m,m...->...", share, t.double())
        torch.testing.assert_close(after.centers[name].double(), expected, atol=1e-6, rtol=0.0)
    kept = torch.stack([engine.states()[i]["pi"] for i in range(12)])
    assert torch.equal(after.assign, kept.argmax(dim=1)) and torch.equal(got["s"], after.assign)


def test_clients_answer_with_the_weighted_mixture() -> None:
    """Scores against the plain sum of probabilities."""
    task, population = small_task(), small_population()
    method, engine = FedEM(k=3, local=LOCAL), Serial(task, population)
    state = play(method, engine, 2)
    scores = evaluate(engine, method, method.serve(state, IDS), IDS, keys.key(0), metrics=task.metrics)
    for i in range(12):
        x, y = population.test.of(i)
        pi = engine.states()[i]["pi"]
        p = sum(pi[k] * task.probabilities(row(state.centers, k), x) for k in range(3))
        assert isinstance(p, torch.Tensor)
        assert float(scores.sums["correct"][i]) == int((p.argmax(dim=1) == y).sum())
        assert float(scores.sums["loss"][i]) == pytest.approx(-float(p.gather(1, y.unsqueeze(1)).log().sum()), rel=1e-4)


def test_turned_digits_are_found_from_a_k_means_start() -> None:
    population = build(DataConfig(clients=16, unseen=4, clusters=4, shift="rotate", samples=60), keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    method = FedEM(local=SGD(lr=0.2, batch=10, epochs=2))
    found = Simulation(method, population, Stacked(task, population), Schedule(10, eval_every=10)).run()
    assert found.unseen_assign is not None and found.unseen is not None
    assert clustering(torch.cat([found.served.index, found.unseen_assign]), population.truth).ari == 1.0
    assert found.accuracy.mean > 0.7 and float(found.unseen.mean()) > 0.7


def test_who_was_never_asked_fits_its_mixture_where_it_is_used() -> None:
    task, population = small_task(), small_population()
    method, engine = FedEM(k=2, local=LOCAL), Serial(task, population)
    state = play(method, engine, 1, some=0.25)
    asked = set(engine.states())
    assert len(asked) == 3
    served = method.serve(state, IDS)
    before = evaluate(engine, method, served, IDS, keys.key(0))
    method.admit(state, engine.cohort(IDS, keys.key(1), 1))  # now everybody has placed itself
    after = evaluate(engine, method, served, IDS, keys.key(0))
    late = torch.tensor([i for i in range(12) if i not in asked])
    assert torch.equal(before.sums["correct"][late], after.sums["correct"][late])


def test_what_needs_one_model_of_each_client_says_so(tmp_path: Path) -> None:
    import clusterfl

    method, engine = FedEM(k=2, local=LOCAL), Serial(small_task(), small_population())
    served = method.serve(play(method, engine, 1), IDS)
    with pytest.raises(NotDefined, match="clients of fedem use a mixture of 2 models"):
        list(personal_models(engine, method, served, IDS, keys.key(0)))
    for wrapper in (AWCFL, MCFL):
        with pytest.raises(ValueError, match="base='fedem' should give each client one model"):
            wrapper(method)
    settings = ["rounds=1", "data.clients=4", "data.unseen=1", "data.samples=10", "engine.name=serial"]
    clusterfl.run(clusterfl.Config.load(None, [*settings, "method.name=fedem", "method.k=2"]), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="should be unset: clients of fedem"):
        admit(tmp_path / "run", out=tmp_path / "models")
    assert next(iter(admit(tmp_path / "run")["clients"].values()))["cluster"] in (0, 1)


def test_settings_are_checked() -> None:
    for options in ({"k": 0}, {"place_steps": 0}, {"weights": "x"}):
        for cls in (FedEM, FedRC):
            with pytest.raises(ValueError, match=next(iter(options))):
                cls(**options)  # type: ignore[arg-type]
