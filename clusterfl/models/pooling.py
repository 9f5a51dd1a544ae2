"""A convolution and the 2x2 max-pooling after it, in one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PooledConv2d(nn.Conv2d):
    """``MaxPool2d(2)`` of a convolution with stride 1: the same function and parameters, for few channels.

    Torch's pooling goes value by value where there are fewer channels than a vector has lanes. In evaluation
    each of the four places of a pooling square gets its own copy of the kernel, shifted within a kernel one
    larger; one convolution of stride 2 then gives the four values in separate channels, whose maximum is
    cheap: a LeNet answers in half the time. Where a gradient is wanted, the way back costs what the way
    there saves.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.max_pool2d(super().forward(x), 2)
        shifted = torch.cat([F.pad(self.weight, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)])
        places = F.conv2d(x, shifted, None, stride=2, padding=self.padding)
        pooled: Tensor = places.unflatten(1, (4, self.out_channels)).amax(dim=1)
        return pooled if self.bias is None else pooled + self.bias[:, None, None]
