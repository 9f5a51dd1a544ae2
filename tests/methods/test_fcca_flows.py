"""FCCA's flows: against small independent computations, divergence, absent labels."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.engines import Serial, Stacked
from clusterfl.methods.fcca import FCCA
from clusterfl.parts.flows import draw_labels, first_weights, projection, start_of
from clusterfl.parts.similarity import signature, similarity
from clusterfl.task import Task
from clusterfl.testing.small import CLIENTS, small_population, small_task
from clusterfl.tree import Tree, row, unvector

from .small_fcca import digits, fcca, start


def test_features_need_a_linear_head() -> None:
    task = Task(nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3)
    with pytest.raises(ValueError, match="Conv2d should be Linear"):
        fcca().flow(task)


def test_moments_are_those_of_all_clients_features() -> None:
    engine = Stacked(small_task(), small_population())
    method = fcca(warmup=0)
    state, cohort = start(method, engine)
    assert state.moments.tolist() == [[0.0] * 8, [1.0] * 8]
    after = method.round(state, cohort)
    shards = engine.worker.train
    x = shards.x[shards.rows[: int(shards.offsets[CLIENTS])]]
    z = engine.task.features(row(state.centers, 0), x).double()  # the encoder as it was received
    torch.testing.assert_close(after.moments[0].double(), z.mean(dim=0), rtol=1e-4, atol=1e-5)
    std = z.std(dim=0, correction=0)
    torch.testing.assert_close(after.moments[1].double(), std.clamp(min=0.1 * float(std.mean())), rtol=1e-3, atol=1e-4)


def test_flows_see_standardised_features() -> None:
    """ReLU features as they are have high cosines between everybody."""
    y = torch.arange(40) % 3
    raw = 30.0 + 5.0 * keys.normal(keys.key(1), 40, 4)
    moments = torch.stack([raw.mean(dim=0), raw.std(dim=0)])
    plain = (raw - moments[0]) / moments[1]
    unit = torch.stack([torch.zeros(4), torch.ones(4)])
    found, _ = fcca()._fit(client(raw, y), raw, moments, 5)
    wanted, _ = fcca()._fit(client(plain, y), plain, unit, 5)
    torch.testing.assert_close(found, wanted)
    twice = torch.stack([raw.mean(dim=0), raw.square().mean(dim=0)])
    assert torch.equal(fcca(recipe="literal")._moments(twice), unit)
    assert not torch.equal(fcca()._moments(twice), unit)


def test_projection_is_orthonormal() -> None:
    q = projection(200, 64)
    torch.testing.assert_close(q.T @ q, torch.eye(64), atol=1e-5, rtol=0)
    flow = FCCA().flow(Task(nn.Linear(200, 3), 3))
    assert (flow.dim, flow.classes) == (64, 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=12), st.integers(0, 2**31))
def test_unknown_labels_are_drawn_from_the_absent_ones(absent: list[bool], seed: int) -> None:
    labels = draw_labels(torch.tensor(absent), keys.key(seed), 400)
    assert labels.min() >= 0 and labels.max() < len(absent)
    if any(absent):
        wanted = {i for i, a in enumerate(absent) if a}
        assert set(labels.tolist()) <= wanted
        shares = torch.bincount(labels, minlength=len(absent))[sorted(wanted)] / 400
        assert (shares - 1 / len(wanted)).abs().max() < 0.15


def client(z: Tensor, y: Tensor, classes: int = 3) -> Client:
    """A client whose features are its data: its model is one linear layer."""
    shard = Shard(z, y, torch.arange(len(y)), len(y))
    return Client(Task(nn.Linear(z.shape[1], classes), classes), shard, shard, keys.key(5), smallest=len(y))


def fitted(method: FCCA, me: Client, steps: int) -> Tree:
    moments = torch.stack([torch.zeros(me.task.width), torch.ones(me.task.width)])
    found, whole = method._fit(me, me.train.x, moments, steps)
    assert bool(whole)
    return unvector(found, first_weights(method.flow(me.task)))


def test_an_absent_label_becomes_noise() -> None:
    """Labels 0 and 1 lie on opposite sides; of label 2, which the client lacks, its flow claims nothing."""
    y = torch.arange(200) % 2
    z = 0.5 * keys.normal(keys.key(1), 200, 6) + (2.0 * y.unsqueeze(1) - 1.0)
    eps = keys.normal(keys.key(2), 2, 500, 6)
    sure = {}
    for alpha in (0.0, 1.0):
        method = FCCA(k=1, alpha=alpha, blocks=2, hidden=16, flow_lr=0.01)
        me = client(z, y)
        theta = fitted(method, me, 150)
        sure[alpha] = similarity(signature(method.flow(me.task), theta, eps).unsqueeze(0)).b[:, 0, 0]
    assert sure[1.0][:2].min() > 0.3
    assert sure[1.0][2] < 0.05 < sure[0.0][2]


def test_a_client_with_every_label_draws_no_unknown() -> None:
    y = torch.arange(60) % 3
    me = client(keys.normal(keys.key(1), 60, 4), y)
    with_, without = (fitted(fcca(alpha=a), me, 5) for a in (1.0, 0.0))
    for name, t in with_.items():
        assert torch.equal(t, without[name])


def test_the_flows_loss_is_equation_3() -> None:
    """One literal step of SGD, by hand: the mean over samples of |c|^2 / 2 - log|J|, and the same for UNKNOWN."""
    y = torch.arange(16) % 2
    me = client(keys.normal(keys.key(1), 16, 4), y)
    method = fcca(recipe="literal", alpha=0.7, flow_batch=16, flow_lr=0.05)
    flow = method.flow(me.task)
    batch = next(iter(me.batches(size=16, steps=1, stream=1)))
    unknown = keys.normal(keys.fold_in(me.key, "unknown", "z", 0), 16, 4)
    theta = {n: t.clone().requires_grad_() for n, t in first_weights(flow).items()}

    def nll(z: Tensor, onehot: Tensor) -> Tensor:
        u, logdet = flow.forward(theta, z, onehot)
        return (u.square().sum(dim=1) / 2 - logdet).mean()

    with torch.enable_grad():
        loss = nll(batch.x, torch.eye(3)[batch.y]) + 0.7 * nll(unknown, torch.eye(3)[[2] * 16])  # only 2 is absent
        gradients = torch.autograd.grad(loss, list(theta.values()))
    got = fitted(method, me, 1)
    for (name, t), g in zip(theta.items(), gradients, strict=True):
        torch.testing.assert_close(got[name], t.detach() - 0.05 * g, rtol=1e-4, atol=1e-6)


def test_the_literal_recipe_diverges_and_is_named_and_the_default_does_not(caplog: pytest.LogCaptureFixture) -> None:
    task, population = digits(0, clients=4, clusters=2)
    full = {"k": 2, "warmup": 0, "draws": 16}  # the default flow: 4 blocks, 64 wide
    for recipe, lost in (("robust", False), ("literal", True)):
        method = FCCA(**full, recipe=recipe)  # type: ignore[arg-type]
        engine = Stacked(task, population)
        state, cohort = start(method, engine)
        with caplog.at_level(logging.WARNING):
            state = method.round(state, cohort)
        assert (cohort.logged["flows_lost"] > 0) == lost
        assert ("diverged and begin anew" in caplog.text) == lost
        assert all(bool(t.isfinite().all()) for t in (*state.centers.values(), state.signatures, state.moments))
    # a lost flow begins anew and teaches the server nothing: whoever has no other stays where it is
    gone = state.fits == 0
    assert bool(gone.any()) and bool((state.assign[gone] == 0).all())
    kept = engine.states()[int(gone.nonzero()[0])]
    assert torch.equal(kept["own_flow"], start_of(method.flow(task)))


def test_a_lost_flow_leaves_the_last_good_signature() -> None:
    engine = Serial(small_task(), small_population())
    method = fcca(warmup=0)
    state, cohort = start(method, engine)
    state = method.round(state, cohort)
    flows = start_of(method.flow(engine.task)).repeat(3, 1)
    flows[1], flows[2, 0] = 0.0, torch.inf
    after = method._remember(state, cohort, torch.tensor([0, 1, 2]), flows)
    assert not torch.equal(after.signatures[0], state.signatures[0])
    assert torch.equal(after.signatures[1:], state.signatures[1:])
    assert after.fits[:3].tolist() == [2, 1, 1]
    assert cohort.logged["flows_lost"] == 2


def test_a_centred_flow_is_sent_with_its_labels_means_and_learns_the_rest() -> None:
    y = torch.tensor([0] * 30 + [1] * 9 + [0])
    z = 7.0 + 3.0 * keys.normal(keys.key(1), 40, 4) + 5.0 * y.unsqueeze(1)
    moments = torch.stack([torch.full((4,), 6.0), torch.full((4,), 2.0)])
    method, me = fcca(centred=True), client(z, y)
    flow, sent = method._describe(me, z, moments, 5)
    away = (z - 6.0) / 2.0
    means = torch.stack([away[y == 0].sum(0) / 32, away[y == 1].sum(0) / 10, torch.zeros(4)])
    torch.testing.assert_close(sent[len(flow) :].reshape(3, 4), means)
    rest = away - means[y]
    unit = torch.stack([torch.zeros(4), torch.ones(4)])
    torch.testing.assert_close(flow, fcca()._fit(client(rest, y), rest, unit, 5)[0])
    eps = keys.normal(keys.key(2), 2, 500, 4)
    shape = method.flow(me.task)
    theta = unvector(flow, first_weights(shape))
    found = method.generate(me, eps, sent)["signature"]
    drawn = shape.inverse(theta, eps[0], torch.eye(3)[1].expand(500, 3)) + means[1]
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found[0, 1], (drawn / drawn.norm(dim=1, keepdim=True)).mean(0))


def test_a_centred_flow_that_diverges_is_sent_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: FCCA, me: Client, z: Tensor, moments: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(start_of(self.flow(me.task))), torch.tensor(False)

    monkeypatch.setattr(FCCA, "_fit", lost)
    y = torch.arange(12) % 3
    me = client(keys.normal(keys.key(1), 12, 4), y)
    flow, sent = fcca(centred=True)._describe(me, me.train.x, torch.stack([torch.zeros(4), torch.ones(4)]), 5)
    assert not sent.any() and torch.equal(flow, start_of(fcca().flow(me.task)))
