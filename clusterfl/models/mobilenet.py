"""MobileNetV2 (Sandler et al., 2018) for 32x32 images.

The blocks are the paper's. As is common for CIFAR, the stem and the second stage have stride 1 instead
of 2, so that the last feature map is 4x4 and not 1x1.
"""

from __future__ import annotations

from torch import Tensor, nn

from clusterfl.models.layers import Classifier, conv_bn, image, named, scaled

# the paper's Table 2: (expansion, channels, blocks, stride of the first block)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Bottleneck(nn.Module):
    """Expand, filter each channel, project; a shortcut where the shape stays the same."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: dict[str, nn.Module] = {}
        if expansion > 1:
            layers |= {"expand": conv_bn(inputs, inner, kernel=1), "relu1": nn.ReLU6()}
        layers |= {"filter": conv_bn(inner, inner, stride=stride, groups=inner), "relu2": nn.ReLU6()}
        self.body = named(**layers, project=conv_bn(inner, outputs, kernel=1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def mobilenetv2(input_shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> Classifier:
    """Inverted residual bottlenecks; 2.24 M parameters for CIFAR-10. ``width`` scales the last layer too."""
    inputs, *_ = image(input_shape)
    size, last = scaled(32, width), scaled(1280, width)
    layers: dict[str, nn.Module] = {"stem": conv_bn(inputs, size), "relu1": nn.ReLU6()}
    for stage, (expansion, channels, blocks, first) in enumerate(_STAGES, start=1):
        outputs = scaled(channels, width)
        strides = [first] + [1] * (blocks - 1)
        sizes = [size] + [outputs] * (blocks - 1)
        layers[f"stage{stage}"] = nn.Sequential(
            *(Bottleneck(s, outputs, stride, expansion) for s, stride in zip(sizes, strides, strict=True))
        )
        size = outputs
    encoder = named(
        **layers,
        last=conv_bn(size, last, kernel=1),
        relu2=nn.ReLU6(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Classifier(encoder, last, classes)
