"""FCCA: its round by hand, its variants, and planted clusters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.methods import METHODS, FedAvg, PerFedAvg
from clusterfl.methods.fcca import FCCA
from clusterfl.metrics import clustering
from clusterfl.parts.local import Train
from clusterfl.task import Task
from clusterfl.testing import check_method
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import row

from .small_fcca import LOCAL, digits, fcca, start

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


def test_absent_clients_keep_their_signature_and_are_clustered_by_it() -> None:
    engine = Serial(small_task(), small_population())
    method = fcca(warmup=0)
    state, cohort = start(method, engine)
    state = method.round(state, cohort)
    half = engine.cohort(torch.arange(0, CLIENTS, 2), keys.key(4), 1)
    after = method.round(state, half)
    assert torch.equal(after.signatures[1::2], state.signatures[1::2])
    assert not torch.equal(after.signatures[::2], state.signatures[::2])
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


# -- variants ---------------------------------------------------------------------------------------------


def test_per_goes_on_with_its_own_head() -> None:
    task, population, ids = small_task(), small_population(), torch.arange(CLIENTS)
    engine = Serial(task, population)
    method = fcca(warmup=0, per=True)
    state = play(method, engine, 2)
    served = method.serve(state, ids)
    assert served.personal
    kept = torch.stack([engine.states()[i][f"own_head/{task.head[0]}"] for i in range(CLIENTS)])
    n, name = population.train.sizes[:CLIENTS].float(), task.head[0]
    for k in range(2):
        w = n * (state.assign == k)
        torch.testing.assert_close(state.centers[name][k], (kept * (w / w.sum()).reshape(-1, 1, 1)).sum(dim=0))
    head = engine.states()[3][f"own_head/{name}"]
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


def test_each_part_of_the_letter_can_be_had_by_itself() -> None:
    literal = FCCA(recipe="literal")
    assert literal.literal(literal.standardised) and literal.literal(literal.per_dim)
    mixed = FCCA(recipe="literal", standardised=True, per_dim=True, optimizer="adam")
    assert not mixed.literal(mixed.standardised) and not mixed.literal(mixed.per_dim)
    small = {"k": 2, "local": LOCAL, "warmup": 0, "flow_steps": 3, "blocks": 2, "hidden": 8, "draws": 16}
    parts = {"optimizer": "adam", "standardised": True, "per_dim": True}
    robust, spelled = FCCA(**small), FCCA(recipe="literal", **parts, **small)
    engine = Serial(small_task(), small_population())
    assert_equal(play(robust, engine, 2), play(spelled, Serial(small_task(), small_population()), 2), "by parts")
    received, own = (play(FCCA(order=o, **small), Serial(small_task(), small_population()), 1) for o in ORDERS)
    assert not torch.equal(received.signatures, own.signatures), "Algorithm 1 shows flows another encoder"
    assert all(torch.equal(t, own.centers[n]) for n, t in received.centers.items() if n not in small_task().head)


ORDERS: tuple[Any, Any] = ("flow-first", "encoder-first")


def test_with_per_fedavg_clients_take_a_step_of_their_own() -> None:
    """Section 4 names PerFedAvg among what FCCA goes with: with one cluster the two are one, but for the weights."""
    small = {"local": LOCAL, "warmup": 0, "flow_steps": 2, "blocks": 2, "hidden": 8, "draws": 8}
    method, ids = FCCA(k=1, meta=0.05, **small), torch.arange(CLIENTS)
    population = small_population(ragged=False)
    ours, theirs = Serial(small_task(), population), Serial(small_task(), population)
    state, other = play(method, ours, 2), play(PerFedAvg(LOCAL, alpha=0.05), theirs, 2)
    for n, t in other.theta.items():
        torch.testing.assert_close(state.centers[n][0], t, atol=1e-6, rtol=1e-5)
    served = method.serve(state, ids)
    assert served.personal and not FCCA(k=1, **small).serve(state, ids).personal
    with pytest.raises(ValueError, match=r"meta=0\.1 should be 0 with prox=0\.1"):
        FCCA(meta=0.1, prox=0.1)
