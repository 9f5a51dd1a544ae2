"""FedGWC: rewards, interactions and kernel as in the authors' code; cuts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.engines import Serial, Stacked
from clusterfl.methods import FedAvg, FedGWC
from clusterfl.methods.fedgwc import Interactions, best_parts, kernel, rewards
from clusterfl.metrics import clustering
from clusterfl.parts.local import SGD, eval_loss
from clusterfl.testing.compare import assert_close
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

from .small import LOCAL


def beginning(n: int) -> Interactions:
    flat = torch.full((n, n), 1.0 / n**2, dtype=torch.float64)
    none = torch.zeros(1, dtype=torch.int64)
    return Interactions({"w": torch.zeros(1, 1)}, torch.zeros(n, dtype=torch.int64), flat, torch.ones(1).double(), none)


# davedleo/FedGWC, agents/servers.py, `_get_gaussian_rewards`, `_update_W` and `_compute_P` (gamma = 0.1) of 6 clients
# with 10, 20, … samples: clients 0-3 in one round, 1, 2, 4, 5 in the next, losses of 3 steps from keys
WHO = ([0, 1, 2, 3], [1, 2, 4, 5])
REWARDS = ([0.498765, 0.570888, 0.701232, 0.816966], [0.600467, 0.667902, 0.509055, 0.859006])
WEIGHTS = [
    [0.137748, 0.137748, 0.137748, 0.137748, 0.027778, 0.027778],
    [0.156328, 0.203948, 0.203948, 0.156328, 0.161098, 0.161098],
    [0.189906, 0.232193, 0.232193, 0.189906, 0.178150, 0.178150],
    [0.219721, 0.219721, 0.219721, 0.219721, 0.027778, 0.027778],
    [0.027778, 0.137983, 0.137983, 0.027778, 0.137983, 0.137983],
    [0.027778, 0.226474, 0.226474, 0.027778, 0.226474, 0.226474],
]
CHANGE = 0.12851581
KERNEL = [
    [0.0, 0.880005, 0.878996, 1.0, 0.832736, 0.889033],
    [0.880005, 0.0, 1.0, 0.880005, 0.883290, 0.883290],
    [0.878996, 1.0, 0.0, 0.878996, 0.885586, 0.885586],
    [1.0, 0.880005, 0.878996, 0.0, 0.883548, 0.943280],
    [0.832736, 0.883290, 0.885586, 0.883548, 0.0, 1.0],
    [0.889033, 0.883290, 0.885586, 0.943280, 1.0, 0.0],
]


def test_two_rounds_are_those_of_the_authors_code() -> None:
    state, method = beginning(6), FedGWC(eps=1e-9)
    for r, who in enumerate(WHO):
        ids = torch.tensor(who)
        losses = keys.uniform(keys.fold_in(keys.key(5), r), 6, 3)[ids]
        reward = rewards(losses, 10.0 * (ids + 1))
        np.testing.assert_allclose(reward, REWARDS[r], atol=1e-5)
        state = method.observe(state, 0, ids, reward)
    np.testing.assert_allclose(state.weights, WEIGHTS, atol=1e-6)
    assert float(state.change[0]) == pytest.approx(CHANGE, abs=1e-7)
    np.testing.assert_allclose(kernel(state.weights, 0.1), KERNEL, atol=1e-5)


def test_rewards_by_hand() -> None:
    """Losses 1, 1, 4 have mean 2 and variance 2: exp(-1/4) twice, and exp(-1)."""
    found = rewards(torch.tensor([[1.0], [1.0], [4.0]]), torch.ones(3))
    np.testing.assert_allclose(found, np.exp([-0.25, -0.25, -1.0]), rtol=1e-6)
    assert bool((rewards(torch.ones(4, 2), torch.ones(4)) == 1.0).all())


def test_groups_of_unlike_losses_are_found() -> None:
    truth = (torch.arange(24) >= 12).long()
    method, state, root = FedGWC(), beginning(24), keys.key(0)
    for t in range(300):
        ids = keys.choice(keys.fold_in(root, t), 24, 6)
        losses = 1.0 + truth[ids].unsqueeze(1) + 0.2 * keys.normal(keys.fold_in(root, "l", t), 6, 8)
        state = method.observe(state, 0, ids, rewards(losses, torch.ones(6)))
        if state.k > 1:
            break
    assert state.k == 2 and clustering(state.assign, truth).ari == 1.0
    assert state.change.tolist() == [1.0, 1.0] and state.calm.tolist() == [0, 0]
    assert torch.equal(state.centers["w"][0], state.centers["w"][1])  # both begin with the cluster's model


def test_the_clearest_cut_wins() -> None:
    blocks = torch.block_diag(torch.ones(6, 6), torch.ones(9, 9)).double()
    affinity = (0.05 + 0.9 * blocks + 0.01 * keys.uniform(keys.key(2), 15, 15)).fill_diagonal_(0.0)
    found = best_parts((affinity + affinity.mT) / 2.0, 4, keys.key(0))
    assert found is not None and clustering(found, (torch.arange(15) > 5).long()).ari == 1.0
    assert best_parts(affinity, 1, keys.key(0)) is None  # all were there: nothing to tell apart


def test_with_everybody_there_it_is_fedavg() -> None:
    """But for rounding: a step that is watched is not the fused one."""
    ours, other = (
        play(m, Serial(small_task(), small_population()), 3) for m in (FedGWC(LOCAL, eps=1e9), FedAvg(LOCAL))
    )
    assert ours.k == 1
    assert_close(row(ours.centers, 0), other.theta, "fedgwc and fedavg")


def test_losses_are_those_before_the_steps() -> None:
    """Steps of no length: all losses of a batch of everything are the loss of the model itself."""
    task, population = small_task(), small_population()
    got = Serial(task, population).cohort(torch.arange(3), keys.key(0))
    theta = task.init(keys.key(1))
    replies = got.run(FedGWC(SGD(lr=0.0, batch=64, epochs=4), losses=3).train, {"theta": theta})
    for i in range(3):
        x, y = population.train.of(i)
        shard = Shard(x, y, torch.arange(len(y)), len(y))
        loss = eval_loss(Client(task, shard, shard, keys.key(0), smallest=len(y)), theta)
        torch.testing.assert_close(replies["losses"][i], loss.expand(3))


@pytest.mark.parametrize("rule", [SGD(lr=0.1, batch=10, epochs=2), SGD(lr=0.1, batch=10, steps=7)])
@pytest.mark.parametrize("losses", [2, 5, 12])
def test_clients_of_any_size_report_as_many_losses_stacked_or_not(rule: SGD, losses: int) -> None:
    """Shards of 24, 29 and 34 samples have 3, 3 and 4 batches; a client's own are in a stack as they are alone."""
    task, population = small_task(), small_population()
    theta, method = task.init(keys.key(1)), FedGWC(rule, losses=losses)
    alone, stacked = (
        e(task, population).cohort(torch.arange(12), keys.key(3)).run(method.train, {"theta": theta})["losses"]
        for e in (Serial, Stacked)
    )
    assert alone.shape == (12, losses)
    torch.testing.assert_close(alone, stacked, atol=1e-5, rtol=1e-4)


def test_settings_are_checked() -> None:
    for options in ({"losses": 0}, {"most": 1}, {"gamma": 0.0}, {"eps": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FedGWC(**options)  # type: ignore[arg-type]


def test_a_few_clients_at_a_time() -> None:
    state = play(FedGWC(LOCAL, losses=2, eps=10.0, gamma=5.0), Serial(small_task(), small_population()), 12, some=0.25)
    assert state.weights.shape == (12, 12) and len(state.change) == state.k == len(state.calm)
    assert set(state.assign.tolist()) <= set(range(state.k))
