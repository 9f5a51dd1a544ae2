"""FCCA against small independent computations, its traps (divergence, absent labels), and planted clusters."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Client, Cohort, Shard
from clusterfl.data import DataConfig, build
from clusterfl.data.population import Population
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.methods import METHODS, FedAvg
from clusterfl.methods.fcca import FCCA, FCCAState, _draw, _like, _projection, _start
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.local import SGD, Train
from clusterfl.parts.similarity import look, similarity
from clusterfl.task import Task
from clusterfl.testing import CLIENTS, check_method, play, small_population, small_task
from clusterfl.tree import Tree, row, unvector

LOCAL = SGD(lr=0.1, batch=10)
SMALL = {"k": 2, "local": LOCAL, "flow_steps": 2, "flow_batch": 16, "blocks": 2, "hidden": 8, "draws": 16}


def fcca(**params: object) -> FCCA:
    return FCCA(**{**SMALL, **params})  # type: ignore[arg-type]


def start(method: FCCA, engine: Serial) -> tuple[FCCAState, Cohort]:
    ids = torch.arange(engine.clients)
    state = method.init(engine.task, engine.cohort(ids, keys.key(1)), keys.key(7))
    return state, engine.cohort(ids, keys.key(3))


def digits(seed: int, **params: object) -> tuple[Task, Population]:
    config = DataConfig(**{"clients": 12, "clusters": 3, "shift": "permute_labels", "samples": 100, **params})  # type: ignore[arg-type]
    population = build(config, keys.key(seed))
    return Task(build_model("mlp", population.input_shape, 10, widths=(64,)), 10), population


# -- the whole ------------------------------------------------------------------------------------------


def test_registered() -> None:
    assert METHODS["fcca"] is FCCA


def test_variants_conform() -> None:
    check_method(fcca(warmup=0, per=True, prox=0.1, dim=4))
    check_method(fcca(warmup=0, centred=True))


def test_one_cluster_is_fedavg() -> None:
    task, population, ids = small_task(), small_population(), torch.arange(CLIENTS)
    one = play(fcca(k=1, warmup=0), Serial(task, population))
    theta = play(FedAvg(local=LOCAL), Serial(task, population)).theta
    assert bool((one.assign[ids] == 0).all())
    for name, t in row(one.centers, 0).items():
        assert torch.equal(t, theta[name])


def test_encoder_is_the_mean_of_all_and_heads_of_their_clusters() -> None:
    task, population = small_task(), small_population()
    engine = Serial(task, population)
    state, cohort = start(fcca(warmup=0), engine)
    after = fcca(warmup=0).round(state, cohort)
    # the same local training, by hand: same keys, same start
    again = engine.cohort(cohort.ids, keys.key(3)).run(Train(LOCAL).train, {"theta": row(state.centers, 0)})
    n = population.train.sizes[:CLIENTS].double()
    assert after.assign.unique().numel() == 2
    for name, t in after.centers.items():
        models = again["theta"][name].double()
        for k in range(2):
            who = after.assign == k if name in task.head else torch.ones(CLIENTS, dtype=torch.bool)
            w = (n * who / (n * who).sum()).reshape(-1, *[1] * (models.dim() - 1))
            torch.testing.assert_close(t[k].double(), (w * models).sum(dim=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("some", "rounds"), [(1.0, 1), (0.5, 2)])
def test_one_head_for_all_until_flows_are_mature(some: float, rounds: int) -> None:
    """Maturity is counted in rounds that a client has had: half the clients take twice the rounds."""
    task, population = small_task(), small_population()
    for more in (0, 1):
        state = play(fcca(warmup=1, flow_steps=1), Serial(task, population), rounds + more, some=some)
        assert state.assign.unique().numel() == 1 + more
        heads, encoder = state.centers[task.head[0]], state.centers[task.params[0]]
        assert torch.equal(heads[0], heads[1]) != bool(more)
        assert torch.equal(encoder[0], encoder[1])


def test_absent_clients_keep_their_look_and_are_clustered_by_it() -> None:
    engine = Serial(small_task(), small_population())
    method = fcca(warmup=0)
    state, cohort = start(method, engine)
    state = method.round(state, cohort)
    half = engine.cohort(torch.arange(0, CLIENTS, 2), keys.key(4), 1)
    after = method.round(state, half)
    assert torch.equal(after.looks[1::2], state.looks[1::2])
    assert not torch.equal(after.looks[::2], state.looks[::2])
    assert after.fits.tolist() == [2, 1] * (CLIENTS // 2)
    matrices, ids = method.similarity(after)
    assert len(ids) == CLIENTS and matrices.s.shape == (3, CLIENTS, CLIENTS)


def test_batch_norm_moments_go_with_the_encoder() -> None:
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    state = play(fcca(warmup=0), Stacked(Task(nn.Sequential(*layers), 3), small_population(ragged=False)), 1)
    mean, steps = state.centers["1.running_mean"], state.centers["1.num_batches_tracked"]
    assert torch.equal(mean[0], mean[1]) and bool(mean.any())
    assert steps.dtype == torch.int64 and bool((steps > 0).all())


def test_a_client_never_heard_of_waits_in_cluster_0() -> None:
    gone = frozenset({0, 1})
    state = play(fcca(warmup=0), Flaky(Serial(small_task(), small_population()), 0.0, gone), 2)
    assert state.assign[:2].tolist() == [0, 0] and state.fits[:2].tolist() == [0, 0]
    assert state.assign[2:].unique().numel() == 2


# -- features and flows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mclr", "mlp", "lenet"])
def test_features_are_what_the_head_takes_in(name: str) -> None:
    task = Task(build_model(name, (1, 8, 8), 10), 10)
    thetas, x = task.init_stack(keys.key(0), 3), keys.normal(keys.key(1), 5, 1, 8, 8)
    for i in range(3):
        theta = row(thetas, i)
        z = task.features(theta, x)
        assert z.shape == (5, task.width)
        logits = nn.functional.linear(z, theta["head.weight"], theta["head.bias"])
        torch.testing.assert_close(logits, task.logits(theta, x))
    stacked = torch.func.vmap(lambda theta: task.features(theta, x))(thetas)
    torch.testing.assert_close(stacked[1], task.features(row(thetas, 1), x))
    assert not any(m._forward_pre_hooks for m in task.module.modules())


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
    q = _projection(200, 64)
    torch.testing.assert_close(q.T @ q, torch.eye(64), atol=1e-5, rtol=0)
    flow = FCCA().flow(Task(nn.Linear(200, 3), 3))
    assert (flow.dim, flow.classes) == (64, 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=12), st.integers(0, 2**31))
def test_unknown_labels_are_drawn_from_the_absent_ones(absent: list[bool], seed: int) -> None:
    labels = _draw(torch.tensor(absent), keys.key(seed), 400)
    assert labels.min() >= 0 and labels.max() < len(absent)
    if any(absent):
        wanted = {i for i, a in enumerate(absent) if a}
        assert set(labels.tolist()) <= wanted
        shares = torch.bincount(labels, minlength=len(absent))[sorted(wanted)] / 400
        assert (shares - 1 / len(wanted)).abs().max() < 0.15


def client(z: Tensor, y: Tensor, classes: int = 3) -> Client:
    """A client whose features are its data: its model is one linear layer."""
    shard = Shard(z, y, torch.arange(len(y)), len(y))
    return Client(Task(nn.Linear(z.shape[1], classes), classes), shard, shard, keys.key(5), least=len(y))


def fitted(method: FCCA, me: Client, steps: int) -> Tree:
    moments = torch.stack([torch.zeros(me.task.width), torch.ones(me.task.width)])
    found, whole = method._fit(me, me.train.x, moments, steps)
    assert bool(whole)
    return unvector(found, _like(method.flow(me.task)))


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
        sure[alpha] = similarity(look(method.flow(me.task), theta, eps).unsqueeze(0)).b[:, 0, 0]
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
    theta = {n: t.clone().requires_grad_() for n, t in _like(flow).items()}

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
        assert all(bool(t.isfinite().all()) for t in (*state.centers.values(), state.looks, state.moments))
    # a lost flow begins anew and teaches the server nothing: whoever has no other stays where it is
    gone = state.fits == 0
    assert bool(gone.any()) and bool((state.assign[gone] == 0).all())
    kept = engine.states()[int(gone.nonzero()[0])]
    assert torch.equal(kept["flow"], _start(method.flow(task)))


def test_a_lost_flow_leaves_the_last_good_look() -> None:
    engine = Serial(small_task(), small_population())
    method = fcca(warmup=0)
    state, cohort = start(method, engine)
    state = method.round(state, cohort)
    flows = _start(method.flow(engine.task)).repeat(3, 1)
    flows[1], flows[2, 0] = 0.0, torch.inf
    after = method._remember(state, cohort, torch.tensor([0, 1, 2]), flows)
    assert not torch.equal(after.looks[0], state.looks[0])
    assert torch.equal(after.looks[1:], state.looks[1:])
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
    theta = unvector(flow, _like(shape))
    found = method.generate(me, eps, sent)["look"]
    drawn = shape.inverse(theta, eps[0], torch.eye(3)[1].expand(500, 3)) + means[1]
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found[0, 1], (drawn / drawn.norm(dim=1, keepdim=True)).mean(0))


def test_a_centred_flow_that_diverges_is_sent_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: FCCA, me: Client, z: Tensor, moments: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(_start(self.flow(me.task))), torch.tensor(False)

    monkeypatch.setattr(FCCA, "_fit", lost)
    y = torch.arange(12) % 3
    me = client(keys.normal(keys.key(1), 12, 4), y)
    flow, sent = fcca(centred=True)._describe(me, me.train.x, torch.stack([torch.zeros(4), torch.ones(4)]), 5)
    assert not sent.any() and torch.equal(flow, _start(fcca().flow(me.task)))


# -- variants ---------------------------------------------------------------------------------------------


def test_per_goes_on_with_its_own_head() -> None:
    task, population, ids = small_task(), small_population(), torch.arange(CLIENTS)
    engine = Serial(task, population)
    method = fcca(warmup=0, per=True)
    state = play(method, engine, 2)
    served = method.serve(state, ids)
    assert served.personal
    kept = torch.stack([engine.states()[i][f"head/{task.head[0]}"] for i in range(CLIENTS)])
    n, name = population.train.sizes[:CLIENTS].float(), task.head[0]
    for k in range(2):
        w = n * (state.assign == k)
        torch.testing.assert_close(state.centers[name][k], (kept * (w / w.sum()).reshape(-1, 1, 1)).sum(dim=0))
    head = engine.states()[3][f"head/{name}"]
    me = Client(task, Shard(*[torch.zeros(0)] * 3, 0), Shard(*[torch.zeros(0)] * 3, 0), keys.key(0))
    me.state = engine.states()[3]
    mine = method.personalise(me, row(state.centers, 0))["theta"]
    assert isinstance(mine, dict) and torch.equal(mine[name], head)
    assert torch.equal(mine[task.params[0]], state.centers[task.params[0]][0])


def test_prox_keeps_encoder_and_head_near() -> None:
    task, population = small_task(), small_population()
    first = start(fcca(), Serial(task, population))[0].centers
    moves = []
    for prox in (0.0, 2.0):
        after = play(fcca(warmup=5, prox=prox), Serial(task, population), 1).centers
        moves.append({n: float((after[n][0] - first[n][0]).norm()) for n in task.params})
    assert all(moves[1][n] < 0.9 * moves[0][n] for n in task.params)


def test_settings_are_checked() -> None:
    for wrong, words in (
        ({"k": 0}, "k=0 should be at least 1"),
        ({"prox": -0.1}, "prox=-0.1 should be at least 0"),
        ({"flow_lr": 0.0}, "flow_lr=0.0 should be above 0"),
        ({"recipe": "loose"}, "recipe='loose' should be 'robust' or 'literal'"),
        ({"dim": 1}, "dim=1 should be at least 2"),
        ({"clamp": 0.0}, "clamp=0.0 should be above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            fcca(**wrong)
    with pytest.raises(ValueError, match="k=13 should be between 1 and the number of clients, 12"):
        start(fcca(k=13), Serial(small_task(), small_population()))


# -- planted clusters --------------------------------------------------------------------------------------


def test_finds_clusters_of_permuted_labels_and_admits_newcomers() -> None:
    """Every label's images are the same set of images in all clusters: only labels tell clients apart."""
    task, population = digits(1, unseen=3, alpha=2.0, alpha_per_class=True)
    method = FCCA(k=3, warmup=5, dim=32, blocks=2, hidden=32, flow_batch=32)
    engine = Stacked(task, population)
    state = play(method, engine, 7)
    assert population.truth is not None
    assert clustering(state.assign, population.truth[:12]).ari == 1.0
    again = play(method, engine, 1, state=state)
    assert torch.equal(again.assign, state.assign)  # k-means names clusters at will; ours keep their ids
    new = method.admit(state, engine.cohort(torch.arange(12, 15), keys.key(2), 7))
    homes = {int(t): int(state.assign[population.truth[:12] == t][0]) for t in range(3)}
    assert new.index.tolist() == [homes[int(t)] for t in population.truth[12:]]
