"""Local training: against plain PyTorch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Batch, Client, Shard
from clusterfl.engines import Serial
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedsgd import FedSGD
from clusterfl.models import build_model
from clusterfl.parts.local import SGD, clipped, eval_loss, full_gradient, gradient, losses, sgd
from clusterfl.parts.optimizers import Adam, AdamW, PlainSGD
from clusterfl.parts.schedules import Cosine, Step, WarmUp
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import CLASSES, WIDTH, small_population, small_task
from clusterfl.tree import row
from tests.helpers import batch_norm_task


def test_batch_norm_against_a_plain_module() -> None:
    """One client, full batches: the buffers and weights are those of ordinary PyTorch."""
    task, population = batch_norm_task(dropout=0.0), small_population(ragged=False)
    theta = task.init(keys.key(3))
    got = (
        Serial(task, population)
        .cohort(torch.arange(1), keys.key(0))
        .run(FedAvg(local=SGD(lr=0.1, batch=24, epochs=3)).train, {"theta": theta})
    )
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))
    module.load_state_dict(theta)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = population.train.of(0)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    assert_close(row(got["theta"], 0), dict(module.state_dict()), "plain PyTorch")


def test_only_some_parameters_move() -> None:
    task = Task(build_model("mlp", (3,), 2, widths=[4]), 2)
    shard = Shard(torch.randn(6, 3), torch.arange(6) % 2, torch.arange(6), 6)
    me = Client(task, shard, shard, keys.key(0), smallest=6)
    theta = task.init(keys.key(1))
    after = sgd(me, theta, SGD(lr=0.5, batch=3), only=task.head)
    assert {n for n, t in theta.items() if not torch.equal(t, after[n])} == set(task.head)

    def slowly(me: Client, theta: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        return gradient(me, theta, batch)

    by_hand: Any = sgd(me, theta, SGD(lr=0.5, batch=3), slowly, only=task.head)
    assert_close(after, by_hand, "head", 1e-6)


def client(task: Task, n: int = 20, key: int = 0, round_: int = 0) -> Client:
    x, y = keys.normal(keys.key(1), n, WIDTH), torch.arange(n) % CLASSES
    shard = Shard(x, y, torch.arange(n), n)
    return Client(task, shard, shard, keys.key(key), round_, smallest=n)


def deep_task() -> Task:
    """A net that is no perceptron, so that its gradient is autograd's."""
    return Task(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)), CLASSES)


@pytest.mark.parametrize("make", [small_task, deep_task], ids=["perceptron", "any net"])
@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (SGD(lr=0.2, batch=7, epochs=2), {}),
        (SGD(lr=0.2, batch=7, steps=5), {}),
        (SGD(lr=0.1, batch=7, epochs=2, momentum=0.9), {"momentum": 0.9}),
        (SGD(lr=0.1, batch=7, epochs=2, weight_decay=0.1), {"weight_decay": 0.1}),
        (SGD(lr=0.1, batch=7, steps=4, momentum=0.5, weight_decay=0.1), {"momentum": 0.5, "weight_decay": 0.1}),
        (SGD(lr=0.5, batch=7, epochs=1, clip=0.1), {}),
        (SGD(lr=0.4, batch=7, epochs=1, lr_decay=0.5), {}),
    ],
    ids=lambda v: "" if isinstance(v, dict) else None,
)
def test_sgd_is_pytorchs(rule: SGD, theirs: dict[str, float], make: Any) -> None:
    """On the same batches: momentum, weight decay, clipping, a step size that decays by round."""
    task = make()
    me, theta = client(task, round_=2), task.init(keys.key(3))
    before = {n: t.clone() for n, t in theta.items()}
    with torch.no_grad():
        found = sgd(me, theta, rule)
    assert_equal(theta, before, "what was received")
    module = deepcopy(task.module)
    module.load_state_dict(theta)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=rule.rate(2), **theirs)
    for batch in me.batches(size=rule.batch, epochs=rule.epochs, steps=rule.steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        if rule.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), rule.clip)
        optimiser.step()
    assert_close(found, dict(module.state_dict()), "torch.optim.SGD", 1e-5)


@pytest.mark.parametrize("make", [small_task, deep_task], ids=["perceptron", "any net"])
@pytest.mark.parametrize(
    ("rule", "theirs", "options"),
    [
        (SGD(lr=0.02, batch=7, epochs=2, optimizer=Adam()), torch.optim.Adam, {}),
        (SGD(lr=0.02, batch=7, epochs=2, optimizer=Adam(), weight_decay=0.1), torch.optim.Adam, {"weight_decay": 0.1}),
        (
            SGD(lr=0.02, batch=7, steps=5, optimizer=AdamW(0.8, 0.9, 1e-4), weight_decay=0.2, schedule=Cosine(10)),
            torch.optim.AdamW,
            {"weight_decay": 0.2, "betas": (0.8, 0.9), "eps": 1e-4},
        ),
    ],
    ids=lambda v: "" if isinstance(v, dict) else None,
)
def test_adam_is_pytorchs(rule: SGD, theirs: Any, options: dict[str, Any], make: Any) -> None:
    task = make()
    me, theta = client(task, round_=2), task.init(keys.key(3))
    with torch.no_grad():
        found = sgd(me, theta, rule)
    module = deepcopy(task.module)
    module.load_state_dict(theta)
    optimiser = theirs(module.parameters(), lr=rule.rate(2), **options)
    for batch in me.batches(size=rule.batch, epochs=rule.epochs, steps=rule.steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        optimiser.step()
    assert_close(found, dict(module.state_dict()), theirs.__name__, 1e-5)


def test_schedules() -> None:
    def factors(schedule: Any, rounds: int) -> list[float]:
        return [schedule.factor(t) for t in range(rounds)]

    assert factors(WarmUp(3), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors(Step(2, 0.5), 5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert factors(Step(2, 0.5, warmup=1), 3) == [0.5, 1.0, 0.5]
    assert factors(Cosine(5), 7) == pytest.approx([1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5, 0.0, 0.0, 0.0])
    assert factors(Cosine(4, floor=0.1, warmup=1), 5) == pytest.approx([0.5, 1.0, 0.55, 0.1, 0.1])
    assert SGD(lr=0.4, lr_decay=0.5, schedule=Step(1, 0.1)).rate(2) == pytest.approx(0.4 * 0.25 * 0.01)


def test_sgd_may_be_named() -> None:
    assert SGD(optimizer=PlainSGD()) == SGD()
    with pytest.raises(ValueError, match=r"momentum=0.9 should be 0 with optimizer 'adam'"):
        SGD(momentum=0.9, optimizer=Adam())
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}):
        with pytest.raises(ValueError, match="should be"):
            Adam(**wrong)
    with pytest.raises(ValueError, match="rounds=5 should be above warmup=5"):
        Cosine(5, warmup=5)
    with pytest.raises(ValueError, match=r"local\.optimizer should be 'sgd' with fedsgd"):
        FedSGD(local=SGD(optimizer=Adam()))


def test_how_long_a_rule_trains() -> None:
    assert SGD(batch=7, epochs=3).batches_of(20) == 9 and SGD(batch=7, steps=5).batches_of(20) == 5
    assert SGD(batch=7, epochs=3).longer(4).epochs == 12 and SGD(batch=7, steps=5).longer(4).steps == 20
    assert SGD(lr=0.4, lr_decay=0.5).rate(3) == 0.05 and SGD(steps=3).epochs is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -0.1},
        {"momentum": -1.0},
        {"batch": 0},
        {"epochs": 0},
        {"steps": 0},
        {"lr_decay": -1.0},
        {"epochs": None},
        {"lr": 1e300},
    ],
    ids=str,
)
def test_rules_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.*should be"):
        SGD(**wrong)


def test_clipping_leaves_short_gradients_alone() -> None:
    short, long = [torch.tensor([0.3, 0.4])], [torch.tensor([3.0]), torch.tensor([4.0])]
    assert torch.equal(clipped(short, 1.0)[0], short[0])
    assert [float(g) for g in clipped(long, 1.0)] == pytest.approx([0.6, 0.8])
    assert not torch.cat(clipped([torch.zeros(2)], 1.0)).isnan().any()


def test_the_gradient_and_loss_of_a_whole_shard() -> None:
    """Put together from pieces of 500, as if it were one batch."""
    task = deep_task()
    me, theta = client(task, n=1201), task.init(keys.key(3))
    x, y = me.train.x, me.train.y
    expected = torch.func.grad(lambda w: task.loss(w, x, y))(theta)
    assert_close(full_gradient(me, theta), expected, "gradient", 1e-5)
    torch.testing.assert_close(eval_loss(me, theta), task.eval_loss(theta, x, y))
    centers = task.init_stack(keys.key(4), 3)
    torch.testing.assert_close(losses(me, centers), torch.stack([eval_loss(me, row(centers, k)) for k in range(3)]))


def test_a_step_size_of_zero_moves_nothing() -> None:
    task = deep_task()
    theta = task.init(keys.key(3))
    assert_equal(sgd(client(task), theta, SGD(lr=0.0, momentum=0.9)), theta, "nothing moved")
