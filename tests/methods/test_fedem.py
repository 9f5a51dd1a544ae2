"""FedEM: its mixture is fitted, served and scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.errors import ConfigError
from clusterfl.evaluate.served import evaluate, personal_models
from clusterfl.loop import Simulation
from clusterfl.method import NotDefined
from clusterfl.methods import AWCFL, MCFL, FedAvg, FedEM, FedRC
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.runs.admission import admit
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

from .small import LOCAL

IDS = torch.arange(12)


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
