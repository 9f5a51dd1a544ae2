"""LeNet-5 (LeCun et al., 1998) with max-pooling and ReLU, as federated papers use it."""

from __future__ import annotations

from torch import nn

from clusterfl.errors import ConfigError
from clusterfl.models.layers import Classifier, image, named, scaled, widened
from clusterfl.models.pooling import PooledConv2d


def lenet(
    input_shape: tuple[int, ...], classes: int, *, padding: int | None = None, width: float = 1.0, gain: float = 1.0
) -> Classifier:
    """Two 5x5 convolutions (6, 16) with pooling, then 120, 84 and the head.

    ``padding`` is the first convolution's: by default 0 from 28 pixels on (44,426 parameters on MNIST, the
    usual federated LeNet) and 2 below. LeCun's own net is ``padding=2`` on MNIST, 61,706 parameters.
    ``gain``: how many times as large as PyTorch's weights start; He's start is 2.449.
    """
    channels, *sides = image(input_shape, at_least=4)
    pad1 = (0 if min(sides) >= 28 else 2) if padding is None else padding
    half = [(side + 2 * pad1 - 4) // 2 for side in sides]
    # the second convolution is padded too where 5x5 kernels would leave less than 2x2 after the pool
    pad2 = 0 if min(half) >= 8 else 2
    height, breadth = ((side + 2 * pad2 - 4) // 2 for side in half)
    if not 0 <= pad1 <= 2 or min(height, breadth) < 1:
        raise ConfigError(f"padding={pad1} should be 0 to 2 and leave pixels of input_shape={input_shape}")
    c1, c2, f1, f2 = (scaled(size, width) for size in (6, 16, 120, 84))
    encoder = named(
        conv1=PooledConv2d(channels, c1, 5, padding=pad1),
        relu1=nn.ReLU(),  # after the pool: the same function, on a quarter of the values
        conv2=nn.Conv2d(c1, c2, 5, padding=pad2),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(c2 * height * breadth, f1),
        relu3=nn.ReLU(),
        fc2=nn.Linear(f1, f2),
        relu4=nn.ReLU(),
    )
    return widened(Classifier(encoder, f2, classes), gain)
