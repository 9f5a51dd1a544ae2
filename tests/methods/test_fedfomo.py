"""FedFomo against a computation by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FedFomo
from clusterfl.methods.fedfomo import Federation
from clusterfl.models import build_model
from clusterfl.parts.holdout import hold_out
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import flat, stack, vector

STILL = SGD(lr=0.0, batch=10)  # what comes back is the mix itself


def federation(n: int = 12) -> Federation:
    task = small_task()
    return Federation(
        task.init_stack(keys.key(3), n), torch.arange(n) * (n + 1), torch.ones(n), torch.ones(n, dtype=torch.bool)
    )


def loss_by_hand(theta: dict[str, torch.Tensor], x: np.ndarray, y: np.ndarray) -> float:
    w = {n: t.double().numpy() for n, t in theta.items()}
    logits = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0.0) @ w["2.weight"].T + w["2.bias"]
    logits = logits - logits.max(axis=1, keepdims=True)
    return float(-(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(len(y)), y].mean())


def table(state: Federation) -> torch.Tensor:
    """The paper's P, whole."""
    return torch.stack([state.useful(i) for i in range(len(state.seen))])


def test_two_rounds_by_hand() -> None:
    task, population = small_task(), small_population()
    method, engine = FedFomo(STILL, models=4, epsilon=0.0), Serial(task, population)
    state = federation()
    before = [{n: t[i] for n, t in state.models.items()} for i in range(12)]  # each client's theta^(t-1)
    for t in range(2):
        key = keys.fold_in(keys.key(7), "round", t)
        sent = [method.select(state, i, state.useful(i), 0.0, keys.fold_in(key, "select", i)) for i in range(12)]
        after = method.round(state, engine.cohort(torch.arange(12), key, t))
        for i in range(12):
            x, y = population.train.of(i)
            shard = Shard(x, y, torch.arange(len(y)), len(y))
            valid = hold_out(Client(task, shard, shard, key, smallest=len(y)), 0.2)[1].train
            xs, ys = valid.x.double().numpy(), valid.y.numpy()
            own = {n: v[i] for n, v in state.models.items()}
            got = (after.useful(i)[sent[i]] - state.useful(i)[sent[i]]).double().numpy()
            for j, w in zip(sent[i].tolist(), got, strict=True):
                other = {n: v[j] for n, v in state.models.items()}
                gain = loss_by_hand(before[i], xs, ys) - loss_by_hand(other, xs, ys)
                gap = float((vector(other, task.params) - vector(before[i], task.params)).double().norm())
                if gap > 1e-3 or gap == 0:  # between nearly equal models only rounding is left
                    np.testing.assert_allclose(w, gain / (gap + 1e-5), rtol=1e-3, atol=1e-4)
            plus = np.maximum(got, 0.0)
            mixed = own
            if plus.sum() > 0:
                mixed = {
                    n: before[i][n]
                    + sum(
                        p * (state.models[n][j] - before[i][n])
                        for p, j in zip(plus / plus.sum(), sent[i].tolist(), strict=True)
                    )
                    for n in own
                }
            for n, v in mixed.items():
                np.testing.assert_allclose(after.models[n][i], v, rtol=1e-4, atol=1e-5)
            before[i] = {n: v[i] for n, v in after.models.items()}
        state = after


def test_when_nobody_helps_the_own_model_stays() -> None:
    """All other models are far worse than the own, which is where the last training began."""
    task, population = small_task(), small_population()
    good = play(FedFomo(SGD(lr=0.5, batch=10, epochs=20)), Serial(task, population), 1)
    bad = {n: 50.0 * t for n, t in federation().models.items()}
    models = {n: torch.cat([good.models[n][:1], bad[n][1:]]) for n in bad}
    state = Federation(models, torch.arange(12) * 13, torch.ones(12), torch.ones(12, dtype=torch.bool))
    after = FedFomo(STILL).round(state, Serial(task, population).cohort(torch.arange(1), keys.key(0)))
    for n, t in models.items():
        assert torch.equal(after.models[n][0], t[0])


def test_models_are_compared_with_where_the_last_training_began() -> None:
    """So that the own trained model can win, which it could not against itself."""
    engine, method = Serial(small_task(), small_population()), FedFomo(SGD(lr=0.1, batch=10))
    first = play(method, engine, 1)
    assert bool((table(first).diagonal() == 1.0).all())  # nobody has trained yet: nothing to gain
    assert not torch.equal(engine.states()[0]["before/0.weight"], first.models["0.weight"][0])
    second = method.round(first, engine.cohort(torch.arange(12), keys.key(8), 1))
    assert float((table(second).diagonal() - 1.0).clamp(min=0.0).mean()) > 0


def test_selection() -> None:
    method, state = FedFomo(models=4), federation()
    row = torch.tensor([0.1, 0.9, -1.0, 5.0, 0.5, 0.7, 0, 0, 0, 0, 0, 0])
    assert method.select(state, 3, row, 0.0, keys.key(0)).tolist() == [3, 1, 5, 4]
    drawn = [method.select(state, 3, row, 1.0, keys.key(s)).tolist() for s in range(50)]
    assert all(d[0] == 3 and len(set(d)) == 4 for d in drawn)
    assert {i for d in drawn for i in d} == set(range(12))
    # models that nobody has trained come last
    state.seen[:] = False
    state.seen[[3, 6, 8]] = True
    assert set(method.select(state, 3, row, 0.5, keys.key(1))[:3].tolist()) == {3, 6, 8}
    ties = {tuple(method.select(federation(), 3, torch.zeros(12), 0.0, keys.key(s)).tolist()) for s in range(20)}
    assert len(ties) > 5  # they do not all go to the lowest ids


def test_clients_find_those_like_them() -> None:
    population = build(DataConfig(clients=16, clusters=4, unseen=4, samples=150), keys.key(0))
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    simulation = Simulation(FedFomo(), population, Stacked(task, population), Schedule(15, eval_every=15))
    out = simulation.run()
    truth = population.truth
    assert truth is not None
    useful = table(out.state).fill_diagonal_(-torch.inf)  # type: ignore[arg-type]
    best = useful.argsort(dim=1, descending=True)[:, :3]
    assert float((truth[best] == truth[:16].unsqueeze(1)).float().mean()) > 0.7
    assert torch.equal(out.served.index, torch.arange(16))
    assert out.unseen is not None and float(out.unseen.mean()) > 0.5


def test_the_store_is_one_model_per_client() -> None:
    state = play(FedFomo(SGD(batch=10)), Serial(small_task(), small_population()), 3, some=0.5)
    assert flat(state.models).shape[0] == 12 and table(state).shape == (12, 12)
    assert len(state.pairs) < 12 * 12, "only pairs that met"
    untouched = (~state.seen).nonzero().flatten()
    first = stack([{n: t[int(i)] for n, t in state.models.items()} for i in untouched])
    assert all(torch.equal(t, t[:1].expand_as(t)) for t in first.values())


def test_settings_are_checked() -> None:
    task, population = small_task(), small_population()
    with pytest.raises(ValueError, match="models=13 should be at most the number of clients, 12"):
        play(FedFomo(models=13), Serial(task, population))
    with pytest.raises(ValueError, match="models=1"):
        FedFomo(models=1)
    with pytest.raises(ValueError, match=r"validation=1\.0"):
        FedFomo(validation=1.0)


def test_weights_are_kept_for_pairs_that_met_only() -> None:
    state, dense = federation(), torch.eye(12)
    for t in range(3):
        key = keys.fold_in(keys.key(1), t)
        ids = keys.choice(key, 12, 4)
        sent = torch.stack([keys.choice(keys.fold_in(key, int(i)), 12, 3) for i in ids])
        w = keys.normal(keys.fold_in(key, "w"), 4, 3)
        state = state.with_weights(ids, sent, w)
        dense[ids.unsqueeze(1), sent] += w
        assert torch.equal(table(state), dense) and torch.equal(state.pairs, state.pairs.unique())
    assert len(state.pairs) <= 12 + 3 * 4 * 3
