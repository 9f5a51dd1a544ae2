"""Grouping thousands of models: a sketch of every one, groups of a sample, and everybody to the nearest mean.

The papers' clusterings compare every client with every other in all coordinates. That is exact up to
:data:`EXACT` clients; above it they look at a sample of clients, by a few hundred numbers each, and all clients then
go to the nearest mean, first by those numbers and last in all coordinates. The numbers are a model's coordinates along
the principal axes of a random few hundred models: random directions would keep distances too, but bury groups that
differ little in the noise of all coordinates. A group that has next to none of the sample can be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.tree import Tree, rows

EXACT = 1000  # clients up to which nothing is sketched
SAMPLE = 1000  # clients whose groups are found by the method's own clustering
AXES = 512  # clients whose models span the sketches' space
WIDTH = 256  # numbers of a sketch
COORDINATES = 4096  # of a model, where distances are sums of absolute values, which no turn of the axes keeps
STEPS = 20  # turns of means and assignments in the sketch, if they do not settle before
LAST_STEPS = 3  # the same in all coordinates
BLOCK = 128  # models at a time
ROWS = 1024  # sketches at a time

Distance = Callable[[Tensor, Tensor], Tensor]  # [m, P] and [K, P] -> [m, K]


@dataclass(frozen=True)
class Moves:
    """How far each of ``m`` models is from where it began: a matrix ``[m, P]`` that nobody holds whole."""

    theta: Tree  # stack [m]
    start: Tree  # stack [K]: where models began
    began: Tensor  # [m]: which of them each model began from
    names: tuple[str, ...]
    rows: Tensor | None = None  # [m]: which models of the stack are meant; None: all of them

    @staticmethod
    def of(theta: Tree, start: Tree, names: tuple[str, ...]) -> Moves:
        """The moves of models that all began from one."""
        one = {n: start[n].unsqueeze(0) for n in names}
        return Moves(theta, one, torch.zeros(rows(theta), dtype=torch.int64), names)

    def __len__(self) -> int:
        return len(self.began)

    @property
    def width(self) -> int:
        return sum(self.start[n][0].numel() for n in self.names)

    def only(self, positions: Tensor) -> Moves:
        """Some rows (their numbers, or a mask), as moves of their own."""
        all_rows = torch.arange(len(self)) if self.rows is None else self.rows
        return replace(self, began=self.began[positions], rows=all_rows[positions])

    def matrix(self, positions: Tensor | None = None) -> Tensor:
        """Some rows, or all of them, as a matrix."""
        began = self.began if positions is None else self.began[positions]
        chosen = positions if self.rows is None else self.rows if positions is None else self.rows[positions]
        out = torch.empty(len(began), self.width, dtype=self.start[self.names[0]].dtype)
        edges = torch.tensor([0, *(self.start[n][0].numel() for n in self.names)]).cumsum(0).tolist()
        for n, (low, high) in zip(self.names, pairwise(edges), strict=True):  # into place: there is no room for copies
            theta = self.theta[n] if chosen is None else self.theta[n][chosen]
            start = self.start[n].flatten(1)
            origin = start[0] if len(start) == 1 else start[began]
            torch.sub(theta.flatten(1), origin, out=out[:, low:high])
        return out

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(positions, rows), a few at a time."""
        for positions in torch.arange(len(self)).split(BLOCK):
            yield positions, self.matrix(positions)

    def norms(self) -> Tensor:
        return torch.cat([x.norm(dim=1) for _, x in self.blocks()])

    def mean(self) -> Tensor:
        """``[P]``; of up to EXACT rows at once, to the bit as ever."""
        return self.matrix().mean(dim=0) if len(self) <= EXACT else self.means(torch.zeros_like(self.began), 1)[0]

    def means(self, labels: Tensor, k: int, *, old: Tensor | None = None) -> Tensor:
        """``[k, P]``: the mean of every group's rows; a group without any keeps its old mean, or is zero."""
        sums, counts = torch.zeros(k, self.width, dtype=torch.float64), torch.bincount(labels, minlength=k)
        for positions, x in self.blocks():
            belongs = torch.nn.functional.one_hot(labels[positions], k).to(x.dtype)
            sums += (belongs.T @ x).double()
        found = sums / counts.clamp(min=1).unsqueeze(1)
        if old is not None:
            found = torch.where(counts.unsqueeze(1) > 0, found, old.double())
        return found.to(self.start[self.names[0]].dtype)

    def assign(self, means: Tensor, distance: Distance) -> tuple[Tensor, Tensor]:
        """The group of every row, and its distances ``[m, K]`` to all of them."""
        away = torch.cat([distance(x, means) for _, x in self.blocks()])
        return away.argmin(dim=1), away

    def sketch(self, key: Key, *, absolute: bool = False) -> Tensor:
        """``[m, WIDTH]``: where every model is in the space that a random few of them span.

        With ``absolute``, some of the coordinates, which keep sums of absolute differences in expectation.
        """
        if absolute:
            some = keys.choice(keys.fold_in(key, "coordinates"), self.width, min(COORDINATES, self.width))
            return torch.cat([x[:, some] for _, x in self.blocks()]) * (self.width / len(some))
        axes = self._axes(keys.fold_in(key, "axes"))
        return torch.cat([x @ axes for _, x in self.blocks()])

    def _axes(self, key: Key) -> Tensor:
        """``[P, WIDTH]``: the directions in which some of the models differ most; none counts for more than the
        median of them, or those of lying clients would be the only ones."""
        some = self.matrix(keys.choice(key, len(self), min(AXES, len(self))))
        gram = torch.zeros(len(some), len(some), dtype=torch.float64)
        for columns in some.split(COORDINATES, dim=1):
            gram += columns.double() @ columns.double().T
        norms = gram.diagonal().sqrt()
        scale = (norms.nanmedian() / norms.clamp(min=1e-300)).clamp(max=1.0)
        values, vectors = torch.linalg.eigh(scale.unsqueeze(1) * gram * scale)
        top = values.argsort(descending=True)[:WIDTH]
        top = top[values[top] > 1e-10 * values.max()]
        found: Tensor = some.T @ (scale.unsqueeze(1) * vectors[:, top] / values[top].sqrt()).to(some.dtype)
        return found


def sample_of(m: int, k: int, key: Key) -> Tensor:
    """Some of ``m`` clients, ten for each of ``k`` groups at least, where there are as many."""
    return keys.choice(keys.fold_in(key, "sample"), m, min(m, max(SAMPLE, 10 * k)))


def group(
    moves: Moves,
    find: Callable[[Tensor], Tensor],
    distance: Distance,
    key: Key,
    *,
    k: int = 1,
    absolute: bool = False,
) -> Tensor:
    """Group numbers ``[m]``: ``find`` groups the sketches of a sample, and all models go to the nearest mean."""
    points = moves.sketch(keys.fold_in(key, "sketch"), absolute=absolute)
    sample = sample_of(len(moves), k, key)
    found = find(points[sample])
    k = int(found.max()) + 1
    labels = settle(points, mean_rows(points[sample], found, k), distance)
    for _ in range(LAST_STEPS):
        before, labels = labels, moves.assign(moves.means(labels, k), distance)[0]
        if torch.equal(before, labels):
            break
    return labels


def settle(points: Tensor, means: Tensor, distance: Distance) -> Tensor:
    """Groups ``[m]`` of the nearest means, and means of the groups, by turns until nobody moves."""
    labels = distance(points, means).argmin(dim=1)
    for _ in range(STEPS):
        means = mean_rows(points, labels, len(means), old=means)
        before, labels = labels, distance(points, means).argmin(dim=1)
        if torch.equal(before, labels):
            break
    return labels


def mean_rows(points: Tensor, labels: Tensor, k: int, *, old: Tensor | None = None) -> Tensor:
    """``[k, P]``: the mean of the rows of every group; a group without any keeps its old one, or is zero."""
    counts = torch.bincount(labels, minlength=k).unsqueeze(1)
    sums = torch.zeros(k, points.shape[1], dtype=torch.float64)
    for of, some in zip(labels.split(ROWS), points.split(ROWS), strict=True):
        sums.index_add_(0, of, some.double())
    means = sums / counts.clamp(min=1)
    if old is not None:
        means = torch.where(counts > 0, means, old.double())
    return means.to(points.dtype)
