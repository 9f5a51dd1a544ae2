"""A convolution and the 2x2 max-pooling after it, in one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PooledConv2d(nn.Conv2d):
    """``MaxPool2d(2)`` of a convolution with stride 1: the same function and parameters, for few channels.

    Torch's pooling goes value by value where there are fewer channels than a vector has lanes. Here each of the
    four places of a pooling square gets its own copy of the kernel, shifted within a kernel one larger; one
    convolution of stride 2 then gives the four values in separate channels, whose maximum is cheap: a LeNet
    answers in half the time. The gradient of the input (MD-ICFL's search) is fastest through patches and a matrix
    product. Only for the gradient of the weights does the way back cost what the way there saves.
    """

    def forward(self, x: Tensor) -> Tensor:
        learning = torch.is_grad_enabled()
        if learning and self.weight.requires_grad:
            return F.max_pool2d(super().forward(x), 2)
        shifted = torch.cat([F.pad(self.weight, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)])
        if learning and x.requires_grad:
            size, pad = shifted.shape[-2:], (int(self.padding[0]), int(self.padding[1]))
            sides = [(x.shape[d] + 2 * pad[d] - size[d]) // 2 + 1 for d in (-2, -1)]
            places = (shifted.flatten(1) @ F.unfold(x, size, stride=2, padding=pad)).unflatten(-1, sides)
        else:
            places = F.conv2d(x, shifted, None, stride=2, padding=self.padding)
        pooled: Tensor = places.unflatten(1, (4, self.out_channels)).amax(dim=1)
        return pooled if self.bias is None else pooled + self.bias[:, None, None]
