"""Dense models: multinomial logistic regression and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from clusterfl.errors import ConfigError
from clusterfl.models.layers import Classifier, HeLinear, named


def mclr(input_shape: tuple[int, ...], classes: int) -> Classifier:
    """Multinomial logistic regression: one linear layer on the flat input."""
    return Classifier(nn.Flatten(), prod(input_shape), classes)


def mlp(input_shape: tuple[int, ...], classes: int, *, widths: Sequence[int] = (200,)) -> Classifier:
    """A perceptron with one hidden ReLU layer per entry of ``widths``.

    The default is IFCA's MNIST net; ten entries give an 11-layer net, FCCA's depth.
    """
    if any(size < 1 for size in widths):
        raise ConfigError(f"widths={tuple(widths)} should be whole numbers above 0")
    sizes = [prod(input_shape), *widths]
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers |= {f"fc{i}": HeLinear(inputs, outputs), f"relu{i}": nn.ReLU()}
    return Classifier(named(**layers), sizes[-1], classes)
