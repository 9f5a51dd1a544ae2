"""AWCFL: what mixing does, where it is used, and where all models coincide."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.engines import Serial
from clusterfl.methods import AWCFL, CFL, FLHC, IFCA, MCFL, FedAvg
from clusterfl.methods.awcfl import mix
from clusterfl.testing import check_same
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import row

from .points import LOCAL, TARGETS, TRUTH, point_task, points

SMALL_IFCA = IFCA(k=2, local=LOCAL)


def test_eq_2_by_hand() -> None:
    c = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 8.0]])
    beta, k = 0.3, 3
    by_hand = np.array([(1 - beta) * c[j] + beta / (k - 1) * (c.sum(axis=0) - c[j]) for j in range(k)])
    found = mix({"w": torch.tensor(c)}, torch.arange(3), beta)["w"]
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-12)


def test_only_clusters_with_clients_are_mixed() -> None:
    c = torch.tensor([[1.0], [100.0], [3.0]])
    found = mix({"w": c}, torch.tensor([0, 2]), 0.25)["w"]
    assert found.flatten().tolist() == [1.5, 100.0, 2.5]


def test_one_cluster_and_beta_zero_change_nothing() -> None:
    centers = {"w": keys.normal(keys.key(0), 3, 4), "count": torch.tensor([1, 2, 3])}
    assert_equal(mix(centers, torch.tensor([1]), 0.5), centers, "one cluster")
    assert_equal(mix(centers, torch.arange(3), 0.0), centers, "beta = 0")
    assert torch.equal(mix(centers, torch.arange(3), 0.7)["count"], centers["count"]), "integer buffers stay"


@pytest.mark.parametrize("mix_for", ["serve", "train", "both"])
@pytest.mark.parametrize("base", [SMALL_IFCA, CFL(local=LOCAL, start_round=1, r1=9.0, r2=0.0, gap=None)])
def test_beta_zero_is_the_base(base: IFCA | CFL, mix_for: str) -> None:
    check_same(AWCFL(base, beta=0.0, mix_for=mix_for), base, rounds=3)


@pytest.mark.parametrize("mix_for", ["serve", "both"])
def test_two_clusters_coincide_at_one_half(mix_for: str, caplog: pytest.LogCaptureFixture) -> None:
    method = AWCFL(SMALL_IFCA, beta=0.5, mix_for=mix_for)
    state = play(method, Serial(small_task(), small_population()), 1)
    served = method.serve(state, torch.arange(CLIENTS))
    assert len(served.index.unique()) == 2
    for t in served.models.values():
        assert torch.equal(t[0], t[1])
    assert "coincide" in caplog.text


@pytest.mark.parametrize(("beta", "warned"), [(0.5, True), (0.53, True), (0.3, False), (0.75, False)])
def test_the_warning_comes_at_and_near_it(beta: float, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        play(AWCFL(SMALL_IFCA, beta=beta), Serial(small_task(), small_population()), 3)
    assert caplog.text.count("coincide") == (1 if warned else 0), "once, not every round"


def test_where_mixed_models_are_used() -> None:
    """Two opposite targets: a client that trains from a mixed centre starts nearer to the other target."""
    truth = torch.tensor([0, 1] * 4)
    targets = torch.tensor([[4.0, 0.0, 0.0], [-4.0, 0.0, 0.0]])
    engine = Serial(point_task(), points(truth, targets, noise=0.0))
    base = FLHC(k=2, start_round=1, local=LOCAL)

    def first(mix_for: str, beta: float = 0.25) -> float:
        method = AWCFL(base, beta=beta, mix_for=mix_for)
        served = method.serve(play(method, engine, 25), torch.arange(8))
        return float(served.models["w"][served.index[0]][0])

    assert first("serve", beta=0.0) == pytest.approx(4.0, abs=1e-3)
    assert first("serve") == pytest.approx(0.5 * 4.0, abs=1e-3), "(1 - beta) 4 - beta 4"
    # c: the centre after training from its mixed self, c/2, 0.51 of the way to 4
    c = 0.51 * 4.0 / (1 - 0.49 * 0.5)
    assert first("train") == pytest.approx(c, abs=1e-3), "trained from mixed, served as it is"
    assert first("both") == pytest.approx(c / 2, abs=1e-3), "and mixed again"


def test_ifca_keeps_its_clusters_only_if_it_never_sees_mixed_models() -> None:
    engine = Serial(small_task(), small_population())
    clusters = {m: len(play(AWCFL(SMALL_IFCA, mix_for=m), engine, 2).assign.unique()) for m in ("serve", "both")}
    assert clusters == {"serve": 2, "both": 1}, "equal models: every loss ties and all clients go to the first"


def test_unseen_clients_choose_among_unmixed_models_and_get_mixed_ones() -> None:
    truth = torch.cat([TRUTH, torch.tensor([0, 1, 2, 3])])
    engine = Serial(point_task(), points(truth, unseen=4))
    method = AWCFL(CFL(local=LOCAL, start_round=3), beta=0.75)
    state = play(method, engine, 30)
    admitted = method.admit(state, engine.cohort(torch.arange(16, 20), keys.key(1)))
    for j, group in enumerate([0, 1, 2, 3]):
        member = int((truth[:16] == group).nonzero()[0])
        assert int(admitted.index[j]) == int(state.assign[member])
    mean = TARGETS.mean(dim=0)  # beta = (K - 1) / K
    for k in range(4):
        torch.testing.assert_close(row(admitted.models, k)["w"], mean, atol=0.05, rtol=0.0)


def test_wrong_settings_say_so() -> None:
    for options in ({"beta": 1.5}, {"beta": -0.1}, {"base": FedAvg()}):
        with pytest.raises(ValueError, match=next(iter(options))):
            AWCFL(**options)
    method, engine = AWCFL(MCFL(SMALL_IFCA)), Serial(small_task(), small_population())
    with pytest.raises(ValueError, match="base='mcfl' should keep K centres"):
        play(method, engine, 1)


def test_a_config_names_the_base() -> None:
    table = {"method": {"name": "awcfl", "beta": 0.25, "base": {"name": "cfl", "start_round": 5}}, "local": {"lr": 0.2}}
    config = Config.parse(table)
    assert config.method == AWCFL(CFL(local=config.local, start_round=5), beta=0.25)
    assert Config.parse(config.table()) == config
