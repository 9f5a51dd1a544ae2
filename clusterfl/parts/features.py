"""Fixed random features of a sample: the same map on every client, drawn once from a key of its own.

They are no better than a guess at what matters in the data, but they need no training, they are the same everywhere
from the first round on, and no sample's features are longer than 1, so that what they add to a sum is bounded.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl import keys

FILTERS, KERNEL, POOL, GRID = 32, 5, 4, 4  # of the random convolution: windows of 4x4 pixels, at least 4x4 of them
CORNERS = 2  # contrast is that of each quarter of an image
ROOT = ("kin", "features")


def random_features(x: Tensor, d: int) -> Tensor:
    """``[n, d']`` with ``d' <= d``, each row at most 1 long: what kind of sample it is decides how.

    Images ``[n, C, H, W]``: shapes, light and contrast. Vectors: projected if they are longer than d.
    Tokens: hashed counts.
    """
    if not x.is_floating_point():
        return hashed_counts(x, d)
    return convolved(x, d) if x.dim() == 4 and min(x.shape[-2:]) >= KERNEL else projected(x.flatten(1), d)


def convolved(x: Tensor, d: int) -> Tensor:
    """Shapes whatever the light, light whatever the contrast, and contrast itself: of 64 features 48, 12 and 4."""
    gray = x.mean(dim=1, keepdim=True)
    contrast = F.adaptive_avg_pool2d(gray.abs(), (CORNERS, CORNERS)).flatten(1)
    light = F.adaptive_avg_pool2d(gray, (GRID, GRID)).flatten(1) / contrast.mean(dim=1, keepdim=True).clamp(min=1e-3)
    strong, few = min(d // 16, CORNERS**2), min(d // 4, GRID**2)
    parts = [
        projected(z, width) for z, width in ((shapes(x), d - few), (light, few - strong), (contrast, strong)) if width
    ]
    return torch.cat(parts, dim=1) / math.sqrt(len(parts))


def shapes(x: Tensor) -> Tensor:
    """Whatever the light: one random convolution, its modulus, means over 4x4 pixels, divided by their mean."""
    z = F.conv2d(x, _filters(x.shape[1]).to(x)).abs()
    height, width = (min(max(side // POOL, GRID), side) for side in z.shape[-2:])
    z = F.adaptive_avg_pool2d(z, (height, width)).flatten(1)
    even: Tensor = z / z.mean(dim=1, keepdim=True).clamp(min=1e-6)
    return even - 1.0  # a mean of 1 for every sample tells nothing


def projected(z: Tensor, d: int) -> Tensor:
    """Onto d random directions, if there are more, and cut to length 1; samples of values of about 1 lie within."""
    width = z.shape[1]
    if width > d:
        z = z @ _directions(width, d).to(z)
    return bounded(z / (1.25 * min(width, d) ** 0.5))


def hashed_counts(x: Tensor, d: int) -> Tensor:
    """How often each of d hash values comes, with a sign that is hashed too; a sample of equal tokens has length 1."""
    x = x.flatten(1).long()
    code = keys.fold_in(keys.fold_in(keys.key(0).to(x.device), *ROOT, "hash"), x)
    sign = 1.0 - 2.0 * ((code >> 40) & 1).float()
    place = ((code >> 8) & 0xFFFF) % d
    hot = (place.unsqueeze(-1) == torch.arange(d, device=x.device)).float() * sign.unsqueeze(-1)
    return hot.mean(dim=1)


def bounded(z: Tensor) -> Tensor:
    """Rows cut to length 1."""
    length: Tensor = z.norm(dim=1, keepdim=True)
    return z / length.clamp(min=1.0)


@lru_cache
def _filters(channels: int) -> Tensor:
    w = keys.normal(keys.fold_in(keys.key(0), *ROOT, "filters"), FILTERS, channels, KERNEL, KERNEL)
    w = w - w.mean(dim=(1, 2, 3), keepdim=True)
    length: Tensor = w.flatten(1).norm(dim=1)
    return w / length.view(-1, 1, 1, 1)


@lru_cache
def _directions(width: int, d: int) -> Tensor:
    """``[width, d]``: orthonormal columns."""
    q: Tensor = torch.linalg.qr(keys.normal(keys.fold_in(keys.key(0), *ROOT, "directions"), width, d)).Q
    return q
