"""Models by name. Each builder is ``(input_shape, classes, *, parameters with defaults)``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from clusterfl.errors import ConfigError, suggestion
from clusterfl.models.cnn import awcnn, cnn
from clusterfl.models.flow import Flow
from clusterfl.models.generator import Generator
from clusterfl.models.layers import Classifier
from clusterfl.models.lenet import lenet
from clusterfl.models.mlp import mclr, mlp
from clusterfl.models.mobilenet import mobilenetv2
from clusterfl.models.resnet import conv18, resnet18
from clusterfl.outside import is_outside, load_outside, offered

__all__ = ["MODELS", "Classifier", "Flow", "Generator", "ModelEntry", "build_model", "find_model"]

GIVEN = ("input_shape", "classes")  # what every builder may ask for


@dataclass(frozen=True)
class ModelEntry:
    """A builder and one line on what it builds. It is given ``input_shape`` and ``classes`` if it has them."""

    builder: Callable[..., nn.Module]
    description: str

    @property
    def params(self) -> dict[str, Any]:
        """The builder's own parameters and their defaults."""
        signature = inspect.signature(self.builder).parameters.values()
        return {p.name: p.default for p in signature if p.name not in GIVEN and p.default is not p.empty}

    def build(self, input_shape: tuple[int, ...], classes: int, **params: Any) -> nn.Module:
        names = inspect.signature(self.builder).parameters
        given = {n: v for n, v in zip(GIVEN, (input_shape, classes), strict=True) if n in names}
        return self.builder(**given, **params)


MODELS: dict[str, ModelEntry] = {
    "mclr": ModelEntry(mclr, "multinomial logistic regression"),
    "mlp": ModelEntry(mlp, "perceptron with any number of hidden layers"),
    "lenet": ModelEntry(lenet, "LeNet-5: 2 convolutions and 3 dense layers"),
    "cnn": ModelEntry(cnn, "LEAF's FEMNIST net: 2 convolutions and a large dense layer"),
    "awcnn": ModelEntry(awcnn, "AWCFL's net: 2 convolutions, optional dropout, 1 dense layer"),
    "conv18": ModelEntry(conv18, "plain 18-layer convolutional net with batch norm"),
    "resnet18": ModelEntry(resnet18, "ResNet-18 for 32x32 images"),
    "mobilenetv2": ModelEntry(mobilenetv2, "MobileNetV2 for 32x32 images"),
}


def find_model(name: str) -> ModelEntry | None:
    """A model of the library, one that a package offers, or a function or class of the user's own code."""
    if name in MODELS:
        return MODELS[name]
    reference = offered("models").get(name, name)
    return _outside(reference) if is_outside(reference) else None


@functools.cache
def _outside(reference: str) -> ModelEntry:
    builder = load_outside(reference)
    if not callable(builder):
        raise ConfigError(f"{reference!r} should be a function or class that makes a torch.nn.Module")
    return ModelEntry(builder, (inspect.getdoc(builder) or "a model of the user's").splitlines()[0])


def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, *, regression: bool = False, **params: Any
) -> nn.Module:
    """The named model for inputs of ``input_shape``, without the batch axis; with ``regression`` ``classes`` are the
    numbers that it answers, and one is enough.

    Its own weights come from torch's global generator; ``Task.init`` draws the ones in use from a key.
    """
    entry = find_model(name)
    if entry is None:
        raise ConfigError(f"model={name!r} should be a known model{suggestion(name, MODELS)}")
    if not input_shape or not all(_is_int(side) and side > 0 for side in input_shape):
        raise ConfigError(f"input_shape={input_shape} should be whole numbers above 0")
    if not _is_int(classes) or classes < (1 if regression else 2):
        raise ConfigError(f"classes={classes} should be a whole number of at least {1 if regression else 2}")
    known = entry.params
    for key, value in params.items():
        if key not in known:
            hint = suggestion(key, known) if known else "; it has none"
            raise ConfigError(f"{key}={value!r} should be a parameter of {name!r}{hint}")
        if not _like(value, known[key]):
            raise ConfigError(f"{key}={value!r} should be like its default in {name!r}, {known[key]!r}")
    return entry.build(tuple(input_shape), classes, **params)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _like(value: Any, default: Any) -> bool:
    """Whether a value from a config, where tuples are lists and 1.0 may be 1, fits the default's type."""
    if default is None:
        return value is None or _is_int(value)
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and all(_is_int(v) for v in value)
    if isinstance(default, float):
        return isinstance(value, float) or _is_int(value)
    if isinstance(default, int) and not isinstance(default, bool):
        return _is_int(value)
    return isinstance(value, type(default))
