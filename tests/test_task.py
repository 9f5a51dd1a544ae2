"""The learning problem: a module as functions of its tree, copied and never changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clusterfl
from clusterfl import keys
from clusterfl.errors import ConfigError
from clusterfl.methods import FedAvg
from clusterfl.models import build_model
from clusterfl.models.dropout import KeyedDropout, dropping, key_dropouts
from clusterfl.task import Task, mean
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import small_population
from clusterfl.tree import nbytes, row, rows


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


def net(dropout: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


X, Y = keys.normal(keys.key(1), 20, 6), torch.arange(20) % 3


# -- what it is made of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_given_module_is_copied_and_never_changed(training: bool) -> None:
    module = net().train(training)
    kinds, before = [type(m) for m in module.modules()], {n: t.clone() for n, t in module.state_dict().items()}
    task = Task(module, 3)
    theta = task.init(keys.key(0))
    task.loss(theta, X, Y, key=keys.key(2))
    with task.bound(theta):
        task.logits(theta, X)
    assert [type(m) for m in module.modules()] == kinds and all(m.training is training for m in module.modules())
    assert_equal(before, module.state_dict(), "its weights")
    with torch.no_grad():
        module[0].weight.zero_()
    assert bool(task.module.state_dict()["0.weight"].any()), "nor does a later change reach the task"


def test_other_public_samples_or_another_memory_order_are_another_task() -> None:
    task = Task(net(), 3, public=X)
    bare, last = task.with_public(None), task.in_channels_last(True)
    assert task.public is X and bare.public is None and last.public is X
    assert last.channels_last and not task.channels_last and not last.in_channels_last(False).channels_last
    theta = task.init(keys.key(0))
    for other in (bare, last):
        assert other.params == task.params and torch.equal(other.logits(theta, X), task.logits(theta, X))


def test_names_and_sizes() -> None:
    module = net()
    module[0].bias.requires_grad_(False)
    task = Task(module, 3)
    assert task.params == ("0.weight", "1.weight", "1.bias", "4.weight", "4.bias") and task.fixed == ("0.bias",)
    assert task.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert task.last == "4" and task.head == ("4.weight", "4.bias") and task.width == 8
    assert task.coupled and not Task(nn.Linear(6, 3), 3).coupled
    assert (task.trainable_size, task.fixed_size) == (4 * (48 + 16 + 24 + 3), 4 * 8)
    assert task.size == task.trainable_size + task.fixed_size + 4 * 16 + 8 == nbytes(task.init(keys.key(0)))
    alone = Task(nn.Linear(6, 3), 3)
    assert alone.head == ("weight", "bias") and alone.last == ""
    with pytest.raises(ValueError, match="at least one trainable parameter"):
        Task(nn.ReLU(), 3)
    with pytest.raises(ValueError, match="last layer=Conv2d should be Linear"):
        _ = Task(nn.Conv2d(1, 3, 1), 3).width


# -- fresh weights -------------------------------------------------------------------------------------------


def test_fresh_weights_come_from_the_key_alone() -> None:
    one, again = (Task(net(), 3).init(keys.key(5)) for _ in range(2))  # two modules with other weights of their own
    assert_equal(one, again, "the same key")
    assert list(one) == [*Task(net(), 3).params, *Task(net(), 3).buffers]
    other = Task(net(), 3).init(keys.key(6))
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert torch.equal(one["1.weight"], torch.ones(8)) and torch.equal(one["1.running_var"], torch.ones(8))
    stack = Task(net(), 3).init_stack(keys.key(5), 3)
    assert rows(stack) == 3 and not torch.equal(stack["0.weight"][0], stack["0.weight"][1])


@pytest.mark.parametrize("layer", [nn.Linear(300, 40), nn.Conv2d(3, 16, 5), nn.Embedding(60, 50)], ids=str)
def test_fresh_weights_are_distributed_as_pytorchs(layer: nn.Module) -> None:
    found = Task(layer, 3).init(keys.key(0))
    torch.manual_seed(0)
    layer.reset_parameters()  # type: ignore[operator]
    for name, p in layer.named_parameters():
        mine, theirs = found[name].flatten(), p.detach().flatten()
        if len(mine) > 500:
            assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.1)
            assert abs(float(mine.mean())) < 4 * float(theirs.std()) / len(mine) ** 0.5
        if not isinstance(layer, nn.Embedding):
            assert float(mine.abs().max()) <= 1 / (layer.weight[0].numel()) ** 0.5  # type: ignore[index,operator]


def test_a_layer_that_is_not_known_keeps_what_the_caller_gave() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    found = Task(nn.Sequential(nn.Linear(6, 3), Scale()), 3).init(keys.key(0))
    assert found["1.factor"].tolist() == [1.0, 2.0, 3.0]


# -- functions -----------------------------------------------------------------------------------------------


def test_logits_and_losses_are_the_modules() -> None:
    module = net()
    task = Task(module, 3)
    theta = task.init(keys.key(0))
    module.load_state_dict(theta)
    with torch.no_grad():
        expected = module.eval()(X)
    torch.testing.assert_close(task.logits(theta, X), expected)
    torch.testing.assert_close(task.probabilities(theta, X), expected.softmax(dim=1))
    torch.testing.assert_close(task.eval_loss(theta, X, Y), nn.functional.cross_entropy(expected, Y))
    with task.bound(theta):
        torch.testing.assert_close(task.logits(theta, X), expected)
        other = task.init(keys.key(9))
        module.load_state_dict(other)
        with torch.no_grad():
            torch.testing.assert_close(task.logits(other, X), module(X))
    assert not any(t is theta["0.weight"] for t in task.module.parameters()), "the module has its own tensors back"


def test_padding_has_no_part_in_a_loss() -> None:
    task = Task(nn.Linear(6, 3), 3)
    theta, w = task.init(keys.key(0)), (torch.arange(20) < 7).float()
    torch.testing.assert_close(task.loss(theta, X, Y, w), task.loss(theta, X[:7], Y[:7]))
    torch.testing.assert_close(task.eval_loss(theta, X, Y, w), task.eval_loss(theta, X[:7], Y[:7]))
    assert float(task.loss(theta, X, Y, torch.zeros(20))) == 0.0
    assert mean(torch.ones(3), torch.zeros(3)) == 0.0


def test_another_loss() -> None:
    task = Task(nn.Linear(6, 3), 3, lambda logits, y: (logits[:, 0] - y).square())
    theta = task.init(keys.key(0))
    by_hand = (task.logits(theta, X)[:, 0] - Y).square().mean()
    torch.testing.assert_close(task.loss(theta, X, Y), by_hand)
    assert task.dense is None


def test_dropout_draws_from_the_steps_key() -> None:
    task = Task(nn.Sequential(nn.Linear(6, 400), nn.Dropout(0.25), nn.Dropout(0.25), nn.Linear(400, 3)), 3)
    theta = task.init(keys.key(0))
    one, again, other = (float(task.loss(theta, X, Y, key=keys.key(k))) for k in (1, 1, 2))
    assert one == again != other and task.drops
    whole = float(task.eval_loss(theta, X, Y))
    assert float(task.loss(theta, X, Y)) == whole, "without a key nothing is dropped"
    torch.manual_seed(0)
    state = torch.get_rng_state()
    task.loss(theta, X, Y, key=keys.key(1))
    assert torch.equal(torch.get_rng_state(), state), "no global random state"
    drop = KeyedDropout(0.25, 0).train()
    with dropping(keys.key(3)):
        kept = drop(torch.ones(20_000))
    assert float((kept > 0).float().mean()) == pytest.approx(0.75, abs=0.02) and float(kept.max()) == pytest.approx(
        4 / 3
    )


def test_training_writes_moments_into_the_tree_and_a_sample_alone_does_not() -> None:
    task = Task(net(0.0), 3)
    theta = task.init(keys.key(0))
    task.loss(theta, X[:1], Y[:1])
    assert int(theta["1.num_batches_tracked"]) == 0 and not bool(theta["1.running_mean"].any())
    task.loss(theta, X, Y)
    assert int(theta["1.num_batches_tracked"]) == 1 and bool(theta["1.running_mean"].any())
    before = theta["1.running_mean"].clone()
    task.logits(theta, X)
    assert torch.equal(theta["1.running_mean"], before), "evaluation leaves them"


def test_training_may_start_from_the_modules_own_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        module[0].weight.fill_(0.5)
        module[1].running_mean.fill_(2.0)
    theta = Task(module, 2, start="given").init(keys.key(1))
    assert all(torch.equal(theta[n], t) for n, t in module.state_dict().items())
    theta["0.weight"].zero_()  # a copy
    assert float(module[0].weight[0, 0]) == 0.5
    with pytest.raises(ValueError, match=r"start='given' has one model .*'kmeans-local'"):
        Task(module, 2, start="given").init_stack(keys.key(0), 2)
    with pytest.raises(ValueError, match="start='warm' should be 'fresh' or 'given'"):
        Task(module, 2, start="warm")  # type: ignore[arg-type]


DROPOUTS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Dropout1d(0.3), (400, 5, 4)),
    (nn.Dropout2d(0.3), (400, 5, 2, 3)),
    (nn.Dropout2d(0.3), (400, 5, 3)),
    (nn.Dropout3d(0.3), (300, 5, 2, 1, 3)),
    (nn.AlphaDropout(0.3), (400, 9)),
    (nn.FeatureAlphaDropout(0.3), (400, 5, 2, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), DROPOUTS, ids=lambda v: getattr(v, "_get_name", lambda: v)())
def test_every_kind_of_dropout_draws_from_the_key_and_drops_as_pytorchs(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    net = nn.Sequential(copy.deepcopy(layer))
    assert key_dropouts(net)
    x = keys.normal(keys.key(1), *shape)
    state = torch.get_rng_state()
    with dropping(keys.key(2)):
        ours = net.train()(x)
        assert torch.equal(ours, net(x))
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    with torch.random.fork_rng():
        theirs = layer.train()(x)
    dropped = [torch.isclose(out, out.flatten().mode().values) for out in (ours, theirs)]
    assert [float(d.float().mean()) for d in dropped] == pytest.approx([0.3, 0.3], abs=0.05)
    both = ~dropped[0] & ~dropped[1]
    torch.testing.assert_close(ours[both], theirs[both])
    assert torch.isclose(ours[dropped[0]][0], theirs[dropped[1]][0], atol=1e-6), "what is dropped is the same"
    if len(shape) > 2:
        together = dropped[0].flatten(2)
        assert bool((together.all(-1) | ~together.any(-1)).all()), "channels are dropped as a whole"


class Drawing(nn.Module):
    """Draws in its forward pass, in training or always."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.layer, self.always = nn.Linear(6, 3), always

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.layer(F.dropout(x, 0.5, training=self.training or self.always))
        return dropped


@pytest.mark.parametrize("always", [True, False])
def test_a_model_that_draws_from_the_global_generator_is_refused_by_name(always: bool) -> None:
    task = Task(Drawing(always=always), 3)
    with pytest.raises(ValueError, match=r"model=Drawing should draw nothing from the global random generator"):
        task.loss(task.init(keys.key(0)), torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"^model=Drawing should draw nothing.*nn\.Dropout layers"):
        clusterfl.run(small_population(), Drawing(always=always), FedAvg(), rounds=1, engine="serial")
