"""Every model by name: shapes, known sizes, the encoder/head split, and what vmap asks of them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clusterfl import keys
from clusterfl.errors import ConfigError
from clusterfl.models import MODELS, Classifier, build_model
from clusterfl.models.layers import HeLinear
from clusterfl.models.pooling import PooledConv2d
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row

IMAGES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 64, 64), (1, 16, 20)]
NORMED = ["conv18", "resnet18", "mobilenetv2"]
SMALL = {name: {"width": 0.125} if "width" in entry.params else {} for name, entry in MODELS.items()}


def small(name: str, shape: tuple[int, ...] = (1, 8, 8), classes: int = 3) -> Classifier:
    torch.manual_seed(0)
    model = build_model(name, shape, classes, **SMALL[name])
    assert isinstance(model, Classifier)
    return model


def count(name: str, shape: tuple[int, ...], classes: int = 10, **params: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(name, shape, classes, **params).parameters())


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_split(name: str, shape: tuple[int, ...]) -> None:
    model = small(name, shape).eval()
    x = torch.randn(2, *shape)
    assert model(x).shape == (2, 3)
    assert torch.equal(model.head(model.encoder(x)), model(x))
    assert isinstance(model.head, nn.Linear)
    assert list(dict(model.named_parameters()))[-2:] == ["head.weight", "head.bias"]
    assert model.encoder(x).shape == (2, model.head.in_features)


def test_flat_inputs() -> None:
    for name in ("mclr", "mlp"):
        assert build_model(name, (60,), 10)(torch.randn(4, 60)).shape == (4, 10)


@pytest.mark.parametrize(
    ("expected", "name", "shape", "classes", "params"),
    [
        (7_850, "mclr", (1, 28, 28), 10, {}),
        (159_010, "mlp", (1, 28, 28), 10, {}),
        (44_426, "lenet", (1, 28, 28), 10, {}),  # unpadded: the default
        (61_706, "lenet", (1, 28, 28), 10, {"padding": 2}),  # LeCun et al.'s
        (61_706, "lenet", (1, 32, 32), 10, {}),
        (62_006, "lenet", (3, 32, 32), 10, {}),
        (6_603_710, "cnn", (1, 28, 28), 62, {}),  # LEAF's FEMNIST net
        (1_663_370, "cnn", (1, 28, 28), 10, {"hidden": 512}),  # McMahan et al., 2017
        (28_938, "awcnn", (1, 28, 28), 10, {}),
        (11_173_962, "resnet18", (3, 32, 32), 10, {}),
        (11_173_962 - 173_824, "conv18", (3, 32, 32), 10, {}),  # less the three projections
        (2_236_682, "mobilenetv2", (3, 32, 32), 10, {}),
    ],
)
def test_known_parameter_counts(
    expected: int, name: str, shape: tuple[int, ...], classes: int, params: dict[str, object]
) -> None:
    assert count(name, shape, classes, **params) == expected


def test_depth() -> None:
    layers = [m for m in build_model("mlp", (64,), 10, widths=[32] * 10).modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 11
    layers = [m for m in small("conv18").modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 18


def test_deep_mlp_does_not_vanish() -> None:
    torch.manual_seed(0)
    out = build_model("mlp", (64,), 10, widths=[64] * 10)(torch.randn(200, 64))
    assert out.std(0).mean() > 0.1


def test_he_start() -> None:
    layer = HeLinear(600, 50)
    assert layer.weight.abs().max().item() == pytest.approx(math.sqrt(6 / 600), rel=0.01)
    assert layer.bias.abs().max() <= 1 / math.sqrt(600)


def test_a_gain_widens_weights_alone() -> None:
    plain, wide = (Task(build_model("lenet", (1, 28, 28), 10, gain=g), 10).init(keys.key(3)) for g in (1.0, 2.0))
    for name, t in plain.items():
        assert torch.equal(wide[name], t if name.endswith("bias") else 2.0 * t), name


@pytest.mark.parametrize("name", [n for n in MODELS if "width" in MODELS[n].params])
def test_width_scales(name: str) -> None:
    full, quarter = count(name, (3, 32, 32)), count(name, (3, 32, 32), width=0.25)
    assert quarter < full / 3.5
    if name in NORMED:
        # not quite 1/16: batch norms and depthwise filters have only a quarter of their parameters left
        assert quarter == pytest.approx(full / 16, rel=0.2)
    assert build_model(name, (3, 32, 32), 10, width=0.01)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", ["lenet", "cnn", "awcnn"])
def test_pool_before_relu_is_the_same_function(name: str) -> None:
    model = small(name, (1, 28, 28))
    layers = dict(model.encoder.named_children())
    order = list(layers)
    for i in (1, 2):
        if f"pool{i}" not in order:
            assert isinstance(layers[f"conv{i}"], PooledConv2d)  # it has its own test
            continue
        pool, relu = order.index(f"pool{i}"), order.index(f"relu{i}")
        assert pool < relu
        order[pool], order[relu] = order[relu], order[pool]
    x = torch.randn(3, 1, 28, 28)
    assert torch.equal(model.encoder(x), nn.Sequential(*(layers[n] for n in order))(x))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_vmap_of_grad_equals_a_loop(name: str, train: bool) -> None:
    # in float64, so that a difference is a wrong rule and not the rounding that batch norm magnifies
    model = small(name, (1, 16, 16)).double().train(train)
    clients, batch = 2, 4
    noise = {n: 0.01 * torch.randn(clients, *p.shape) for n, p in model.named_parameters()}
    theta = {n: p.detach() + noise[n] for n, p in model.named_parameters()}
    buffers = repeat(dict(model.named_buffers()), clients)
    x, y = torch.randn(clients, batch, 1, 16, 16).double(), torch.randint(3, (clients, batch))

    def step(theta: Tree, buffers: Tree, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        def loss(theta: Tree) -> tuple[Tensor, Tree]:
            new = {n: b.clone() for n, b in buffers.items()}  # batch norm writes into what it is given
            return F.cross_entropy(functional_call(model, {**theta, **new}, (x,)), y), new

        return grad(loss, has_aux=True)(theta)

    gradient, new = vmap(step)(theta, buffers, x, y)
    for i in range(clients):
        one_gradient, one_new = step(row(theta, i), row(buffers, i), x[i], y[i])
        torch.testing.assert_close(row(gradient, i), one_gradient)
        torch.testing.assert_close(row(new, i), one_new)
    if name in NORMED:
        moved = any(not torch.equal(new[n], b) for n, b in buffers.items())
        assert moved == train


def test_dropout() -> None:
    model = build_model("awcnn", (1, 8, 8), 3, dropout=0.5)
    x = torch.randn(2, 1, 8, 8)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
    assert not any(isinstance(m, nn.Dropout) for m in build_model("awcnn", (1, 8, 8), 3).modules())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "params", "words"),
    [
        ("lenett", (1, 8, 8), 3, {}, "model='lenett' should be a known model; did you mean 'lenet'?"),
        (
            "mlp",
            (64,),
            3,
            {"width": (9,)},
            "width=(9,) should be a parameter of 'mlp'; did you mean 'widths'?",
        ),
        ("mclr", (64,), 3, {"width": 1.0}, "width=1.0 should be a parameter of 'mclr'; it has none"),
        ("mlp", (64,), 3, {"widths": 9}, "widths=9 should be like its default in 'mlp', (200,)"),
        ("mlp", (64,), 3, {"widths": [9, 0]}, "widths=(9, 0) should be whole numbers above 0"),
        ("cnn", (1, 8, 8), 3, {"hidden": 0}, "hidden=0 should be above 0"),
        ("cnn", (1, 8, 8), 3, {"hidden": True}, "hidden=True should be like its default in 'cnn', 2048"),
        ("cnn", (1, 8, 8), 3, {"width": 0}, "width=0 should be above 0"),
        ("cnn", (64,), 3, {}, "input_shape=(64,) should be (channels, height, width)"),
        ("cnn", (1, 3, 8), 3, {}, "input_shape=(1, 3, 8) should be at least 4x4 pixels"),
        ("lenet", (1, 4, 4), 3, {"padding": 0}, "padding=0 should be"),
        ("lenet", (1, 8, 8), 3, {"padding": 3}, "padding=3 should be"),
        ("lenet", (1, 8, 8), 3, {"gain": 0.0}, "gain=0.0 should be above 0"),
        ("awcnn", (1, 8, 8), 3, {"dropout": 1.0}, "dropout=1.0 should be at least 0 and below 1"),
        ("mclr", (), 3, {}, "input_shape=() should be whole numbers above 0"),
        ("mclr", (0, 8), 3, {}, "input_shape=(0, 8) should be whole numbers above 0"),
        ("mclr", (64,), 1, {}, "classes=1 should be a whole number of at least 2"),
    ],
)
def test_errors_say_what_is_wrong(
    name: str, shape: tuple[int, ...], classes: int, params: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        build_model(name, shape, classes, **params)
    assert str(error.value).startswith(words)


def test_parameters_are_listed() -> None:
    assert MODELS["lenet"].params == {"padding": None, "width": 1.0, "gain": 1.0}
    assert MODELS["mclr"].params == {}
    assert all(entry.description for entry in MODELS.values())
