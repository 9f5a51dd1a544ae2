"""LeNet-5 (LeCun et al., 1998) with max-pooling and ReLU, as federated papers use it."""

from __future__ import annotations

from torch import nn

from clusterfl.errors import ConfigError
from clusterfl.models.layers import Classifier, image, named, scaled


def lenet(
    input_shape: tuple[int, ...], classes: int, *, padding: int | None = None, width: float = 1.0
) -> Classifier:
    """Two 5x5 convolutions (6, 16) with pooling, then 120, 84 and the head.

    ``padding`` of both convolutions: by default 0 from 28 pixels on (44,426 parameters on MNIST) and 2
    below, where 5x5 kernels would leave nothing. LeCun pads only MNIST's frame, which is ``pad_input`` work
    for the data: LeNet-5's own 61,706 parameters belong to 1x32x32.
    """
    channels, height, breadth = image(input_shape)
    pad = (0 if min(height, breadth) >= 28 else 2) if padding is None else padding

    def after(side: int) -> int:
        """The side of the feature map after both convolutions and pools."""
        return ((side + 2 * pad - 4) // 2 + 2 * pad - 4) // 2

    if pad < 0 or min(after(height), after(breadth)) < 1:
        raise ConfigError(f"padding={pad} should be larger for input_shape={input_shape}")
    c1, c2, f1, f2 = (scaled(size, width) for size in (6, 16, 120, 84))
    encoder = named(
        conv1=nn.Conv2d(channels, c1, 5, padding=pad),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),  # after the pool: the same function, on a quarter of the values
        conv2=nn.Conv2d(c1, c2, 5, padding=pad),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(c2 * after(height) * after(breadth), f1),
        relu3=nn.ReLU(),
        fc2=nn.Linear(f1, f2),
        relu4=nn.ReLU(),
    )
    return Classifier(encoder, f2, classes)
