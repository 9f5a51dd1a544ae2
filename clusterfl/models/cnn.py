"""Two-convolution nets: LEAF's FEMNIST CNN and the AWCFL paper's."""

from __future__ import annotations

from torch import nn

from clusterfl.errors import ConfigError
from clusterfl.models.layers import Classifier, image, named, scaled


def _convolutions(input_shape: tuple[int, ...], first: int, second: int) -> tuple[dict[str, nn.Module], int]:
    """Two 'same' 5x5 convolutions, each pooled by 2, and the number of features they leave."""
    channels, height, breadth = image(input_shape, at_least=4)
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, first, 5, padding=2),
        "pool1": nn.MaxPool2d(2),
        "relu1": nn.ReLU(),  # after the pool: the same function, on a quarter of the values
        "conv2": nn.Conv2d(first, second, 5, padding=2),
        "pool2": nn.MaxPool2d(2),
        "relu2": nn.ReLU(),
        "flatten": nn.Flatten(),
    }
    return layers, second * (height // 4) * (breadth // 4)


def cnn(input_shape: tuple[int, ...], classes: int, *, hidden: int = 2048, width: float = 1.0) -> Classifier:
    """LEAF's FEMNIST net (Caldas et al., 2018): convolutions of 32 and 64 channels, a dense layer, the head.

    With ``hidden=512`` it is FedAvg's MNIST net (McMahan et al., 2017). ``width`` scales all three layers.
    """
    if hidden < 1:
        raise ConfigError(f"hidden={hidden} should be above 0")
    layers, features = _convolutions(input_shape, scaled(32, width), scaled(64, width))
    units = scaled(hidden, width)
    encoder = named(**layers, fc1=nn.Linear(features, units), relu3=nn.ReLU())
    return Classifier(encoder, units, classes)


def awcnn(input_shape: tuple[int, ...], classes: int, *, dropout: float = 0.0, width: float = 1.0) -> Classifier:
    """AWCFL's net: two convolutions, two pools, two ReLUs and a full layer; with dropout for its EMNIST runs.

    The paper gives no sizes; 16 and 32 channels are this library's choice.
    """
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} should be at least 0 and below 1")
    layers, features = _convolutions(input_shape, scaled(16, width), scaled(32, width))
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)  # Task replaces it by one that draws from the step's key
    return Classifier(named(**layers), features, classes)
