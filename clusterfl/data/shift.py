"""What makes one true cluster differ from another: turned or mirrored images, exchanged labels, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl import keys
from clusterfl.errors import ConfigError, DataError, suggestion
from clusterfl.keys import Key

SHIFTS = ("none", "rotate", "flip", "swap_labels", "permute_labels", "rotate+swap")
MIRRORS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))  # as they are, left-right, upside down, both


@dataclass(frozen=True)
class Shift:
    """Cluster k mirrors or turns images by ``angles[k]`` degrees and renames label c to ``labels[k, c]``."""

    name: str
    angles: tuple[float, ...]  # counter-clockwise
    labels: Tensor  # [K, C] int64

    def apply(self, x: Tensor, y: Tensor, cluster: int) -> tuple[Tensor, Tensor]:
        moved = mirror(x, cluster) if self.name == "flip" else rotate(x, self.angles[cluster])
        return moved, y if y.is_floating_point() else self.labels[cluster][y]  # numbers have no classes to swap


def mirror(x: Tensor, cluster: int) -> Tensor:
    """Images ``[n, C, H, W]`` mirrored in the cluster's way."""
    if MIRRORS[cluster] and x.ndim != 4:
        raise DataError(f"shift='flip' should have images, not samples of shape {tuple(x.shape[1:])}")
    return x.flip(MIRRORS[cluster])


def rotate(x: Tensor, angle: float) -> Tensor:
    """Images ``[n, C, H, W]`` turned counter-clockwise: exact for multiples of 90, else bilinear.

    What comes in from outside repeats the border, which suits white paper, black ground and photographs.
    """
    if angle % 360 == 0:
        return x
    if x.ndim != 4:
        raise DataError(f"shift='rotate' should have images, not samples of shape {tuple(x.shape[1:])}")
    if x.shape[-1] != x.shape[-2] and angle % 180:
        raise DataError(f"angles={angle} should be a multiple of 180: images are {tuple(x.shape[-2:])}")
    if angle % 90 == 0:
        return torch.rot90(x, round(angle / 90) % 4, (-2, -1))
    return turn_bilinear(x, angle)


def turn_bilinear(x: Tensor, angle: float) -> Tensor:
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # grid_sample asks, for each place in the output, where in the input to look: the inverse rotation
    matrix = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]], dtype=x.dtype)
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def even_angles(clusters: int) -> tuple[float, ...]:
    """The circle in equal parts: 0, 90, 180, 270 for four clusters."""
    return tuple(k * 360.0 / clusters for k in range(clusters))


def swap_pairs(clusters: int, classes: int, key: Key) -> list[tuple[int, int]]:
    """One pair of classes per cluster, all different, and disjoint while 2 * clusters <= classes.

    Rounds of a round-robin tournament: a round's pairs are disjoint, and no pair comes twice.
    """
    most = classes * (classes - 1) // 2
    if clusters > most:
        raise ConfigError(f"clusters={clusters} should be at most {most}, the pairs among {classes} classes")
    order = keys.permutation(key, classes).tolist()
    seats = order if classes % 2 == 0 else [*order, None]  # who meets None sits out
    pairs: list[tuple[int, int]] = []
    while len(pairs) < clusters:
        half = len(seats) // 2
        games = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairs += [(a, b) for a, b in games if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return pairs[:clusters]


def _swaps(clusters: int, classes: int, key: Key) -> Tensor:
    table = torch.arange(classes).repeat(clusters, 1)
    for k, (a, b) in enumerate(swap_pairs(clusters, classes, key)):
        table[k, a], table[k, b] = b, a
    return table


def _permutations(clusters: int, classes: int, key: Key) -> Tensor:
    """Different orders of the classes; cluster 0 keeps its own."""
    if clusters > math.factorial(min(classes, 20)):
        raise ConfigError(
            f"clusters={clusters} should be at most the {math.factorial(classes)} orders of {classes} classes"
        )
    found = [torch.arange(classes)]
    draws = 0
    # few classes meet the same order again: a full turn through small factorials takes a bounded while
    while len(found) < clusters and draws < 1000 * clusters:
        order = keys.permutation(keys.fold_in(key, draws), classes)
        draws += 1
        if not any(torch.equal(order, f) for f in found):
            found.append(order)
    if len(found) < clusters:
        raise ConfigError(f"clusters={clusters} should be smaller: only {len(found)} label orders were found")
    return torch.stack(found)


def make_shift(name: str, clusters: int, classes: int, key: Key, angles: tuple[float, ...] | None = None) -> Shift:
    """The shift of every cluster. Swaps are one pair per cluster, so two clusters differ in four classes."""
    if name not in SHIFTS:
        raise ConfigError(f"shift={name!r} should be one of the known shifts{suggestion(name, SHIFTS)}")
    if name == "flip" and clusters > len(MIRRORS):
        raise ConfigError(
            f"clusters={clusters} should be at most {len(MIRRORS)} with shift='flip': so many mirror images"
        )
    turns = name in ("rotate", "rotate+swap")
    if angles is not None and not turns:
        raise ConfigError(f"angles={angles} should be unset unless shift is 'rotate' or 'rotate+swap'")
    if angles is not None and len(angles) != clusters:
        raise ConfigError(f"angles={angles} should be {clusters} numbers, one per cluster")
    if name in ("swap_labels", "rotate+swap"):
        labels = _swaps(clusters, classes, key)
    elif name == "permute_labels":
        labels = _permutations(clusters, classes, key)
    else:
        labels = torch.arange(classes).repeat(clusters, 1)
    even = even_angles(clusters) if turns else (0.0,) * clusters
    return Shift(name, even if angles is None else tuple(angles), labels)
