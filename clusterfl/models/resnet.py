"""ResNet-18 and the plain 18-layer net beside it (He et al., 2016), in their common form for 32x32 images.

That form has a 3x3 stem of stride 1 and no first pool, so that the last feature map is 4x4.
"""

from __future__ import annotations

from torch import Tensor, nn

from clusterfl.models.layers import Classifier, conv_bn, image, named, scaled

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # (channels, stride of the stage's first convolution)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = named(
            first=conv_bn(inputs, outputs, stride=stride), relu=nn.ReLU(), second=conv_bn(outputs, outputs)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_bn(inputs, outputs, kernel=1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def resnet18(input_shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> Classifier:
    """Eight residual blocks in four stages of 64 to 512 channels; 11.17 M parameters for CIFAR-10."""
    inputs, *_ = image(input_shape)
    size = scaled(64, width)
    layers: dict[str, nn.Module] = {"stem": conv_bn(inputs, size), "relu": nn.ReLU()}
    for stage, (channels, stride) in enumerate(_STAGES, start=1):
        outputs = scaled(channels, width)
        layers[f"stage{stage}"] = nn.Sequential(Block(size, outputs, stride), Block(outputs, outputs, 1))
        size = outputs
    return Classifier(named(**layers, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()), size, classes)


def conv18(input_shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> Classifier:
    """ResNet-18 without its shortcuts, He et al.'s plain-18: 17 convolutions and the head.

    FCCA names its net only as "18-layer Conv-based"; this is the plain reading of those words.
    """
    size, *_ = image(input_shape)
    layers: dict[str, nn.Module] = {}
    strides = [(64, 1)] + [(channels, s) for channels, stride in _STAGES for s in (stride, 1, 1, 1)]
    for i, (channels, stride) in enumerate(strides, start=1):
        outputs = scaled(channels, width)
        layers |= {f"conv{i}": conv_bn(size, outputs, stride=stride), f"relu{i}": nn.ReLU()}
        size = outputs
    return Classifier(named(**layers, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()), size, classes)
