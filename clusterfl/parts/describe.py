"""What a client says about its data before any training: its label counts, class means and spread of fixed features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Replies
from clusterfl.fields import at_least, one_of, option
from clusterfl.message import Kept, Labels, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.parts.evidence import Summaries, whitening
from clusterfl.parts.features import projected, random_features
from clusterfl.parts.kinship import find_groups
from clusterfl.parts.spreads import Groups
from clusterfl.task import Task
from clusterfl.tree import Tree

Unit = Literal["sample", "client"]
BINS = 8  # of targets that are numbers


@dataclass(frozen=True)
class Describe(Procedures):
    """The statistics, and the noise that a client adds to them.

    Everything is divided by the number of samples, so that no field is longer than 1 whatever the client holds.
    """

    dims: int = option(64, "features of a sample")
    noise: float = option(0.0, "noise multiplier: the Gaussian noise on every number, in sensitivities")
    unit: Unit = option("sample", "what the noise hides: one sample of a client, or all of them")

    def __post_init__(self) -> None:
        at_least(1, self, "dims")
        at_least(0, self, "noise")
        one_of(Unit, self, "unit")

    @on_client(
        n=Weight(),
        shares=Labels(),
        means=Statistic("the mean of fixed features of its samples, class by class, times the class's share", 1.0),
        squares=Statistic("the mean products of these features, all classes together", 1.0),
        digest=Kept("a checksum of its data"),
    )
    def describe(self, me: Client, theta: Tree | None = None) -> dict[str, Payload]:
        """``theta``: features are those of this model's encoder, in place of random ones."""
        c = kinds(me.task)
        shares, means, squares = torch.zeros(3, 1, device=me.key.device).unbind()
        for x, y, w in me.train.pieces():
            z = self.features(me, x, theta)
            hot = (bins(y, c).unsqueeze(1) == torch.arange(c, device=y.device)).to(z.dtype)
            hot = hot if w is None else hot * w.unsqueeze(1)
            shares = shares + hot.sum(dim=0)
            means = means + hot.mT @ z
            squares = squares + (z if w is None else z * w.unsqueeze(1)).mT @ z
        me.keep(digest=checksum(me))
        n = me.size.clamp(min=1.0)
        out = {"shares": shares / n, "means": means / n, "squares": triangle(squares) / n}
        if self.noise:
            std = self.noise * self.sensitivity / (n if self.unit == "sample" else 1.0)
            noise = {name: keys.normal(keys.fold_in(me.key, "noise", name), *t.shape) for name, t in out.items()}
            out = {name: t + std * noise[name].to(t) for name, t in out.items()}
        return {"n": me.size, **out}

    def features(self, me: Client, x: Tensor, theta: Tree | None) -> Tensor:
        if theta is None:
            return random_features(x, self.dims)
        z = me.task.features(theta, x).flatten(1)
        return projected(z / z.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-6), self.dims)

    @property
    def sensitivity(self) -> float:
        """How far a reply moves, in Euclidean length, if a sample (times n) or the whole client is replaced.

        A sample counts once in shares and at most 1 in means and squares: sqrt(6) whether its class changes or not. Of
        two clients shares and squares differ by up to sqrt(2) and means by 2.
        """
        return math.sqrt(6.0) if self.unit == "sample" else math.sqrt(8.0)


def kinds(task: Task) -> int:
    """How many classes there are, or bins of real targets."""
    return task.classes or BINS


def bins(y: Tensor, classes: int) -> Tensor:
    """The class that a target counts as. Real targets, standardised, fall into equally likely bins of N(0, 1)."""
    if not y.is_floating_point():
        return y
    edges = torch.erfinv(2.0 * torch.arange(1, classes, device=y.device) / classes - 1.0) * math.sqrt(2.0)
    return (y.reshape(len(y), -1)[:, :1] > edges).sum(dim=1)


def triangle(square: Tensor) -> Tensor:
    """The upper half of a symmetric matrix, with the length of the whole."""
    rows, columns = _upper(square.shape[-1])
    twice = 1.0 + (math.sqrt(2.0) - 1.0) * (rows != columns).to(square)
    return square[rows, columns] * twice


def symmetric(half: Tensor) -> Tensor:
    """``[…, d, d]``: the inverse of :func:`triangle`."""
    d = (math.isqrt(8 * half.shape[-1] + 1) - 1) // 2
    rows, columns = _upper(d)
    values = half / torch.where(rows != columns, math.sqrt(2.0), 1.0).to(half)
    out = torch.zeros(*half.shape[:-1], d, d, dtype=half.dtype)
    out[..., rows, columns] = values
    out[..., columns, rows] = values
    return out


@lru_cache
def _upper(d: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(d, d)
    return rows, columns


# -- has anything changed? ---------------------------------------------------------------------------------


def checksum(me: Client) -> Tensor:
    """``[3]``: a few sums over a client's samples, cheap to compute in every round and never sent."""
    total = torch.zeros(3, device=me.key.device)
    for x, y, w in me.train.pieces():
        x = x.flatten(1).float()
        line = x @ _line(x.shape[1]).to(x)
        marked = line * torch.cos(1.0 + y.reshape(len(y), -1)[:, 0].float())
        parts = torch.stack([line, line.square(), marked], dim=1)
        total = total + (parts if w is None else parts * w.unsqueeze(1)).sum(dim=0)
    return total / me.size.clamp(min=1.0)


@lru_cache
def _line(width: int) -> Tensor:
    line: Tensor = keys.normal(keys.fold_in(keys.key(0), "kin", "checksum"), width) / width**0.5
    return line


def changed(me: Client) -> Tensor:
    """1 if the client's data is not what it last described, else 0; 0 for one that never did."""
    now = checksum(me)
    before = me.state.get("digest", now)
    return ((now - before).abs() > 1e-4 * (1.0 + before.abs())).any().float()


# -- on the server -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What replies to ``describe`` say, before whitening."""

    counts: Tensor  # [m, C]
    means: Tensor  # [m, C, d]
    blur: Tensor  # [m]: variance of the noise on a class's *sum*
    scatter: Tensor  # [m, d, d] summed over clients
    freedom: Tensor  # of the scatter, summed over clients


def read(got: Replies | Mapping[str, Any], describe: Describe) -> Known:
    """Replies in the words of the model: counts, means and the scatter within classes, less what noise adds to it."""
    n = got["n"].double().unsqueeze(1)
    scale = n if describe.unit == "client" else torch.ones_like(n)
    blur = (describe.noise * describe.sensitivity * scale).square()  # of n times a reply
    counts = n * got["shares"].double()
    held = counts > torch.maximum(torch.tensor(0.5).double(), 2.0 * blur.sqrt())  # a class of noise is no class
    counts = torch.where(held, counts, 0.0)
    sums = n.unsqueeze(2) * got["means"].double() * held.unsqueeze(2)
    means = sums / counts.clamp(min=0.5).unsqueeze(2)
    within = n.unsqueeze(2) * symmetric(got["squares"].double()) - torch.einsum("mcd,mce->mde", sums, means)
    extra = torch.where(held, blur / counts.clamp(min=0.5), 0.0).sum(dim=1)
    within = within + extra.view(-1, 1, 1) * torch.eye(within.shape[-1], dtype=torch.float64)
    freedom = (counts.sum(dim=1) - held.sum(dim=1)).clamp(min=0.0)
    return Known(counts, means, blur.squeeze(1), within.sum(dim=0), freedom.sum())


def summaries(
    counts: Tensor, means: Tensor, blur: Tensor, scatter: Tensor, freedom: float, *, labels: bool = False
) -> tuple[Summaries, Tensor]:
    """Whitened summaries of clients, and the whitening ``[d, d]``.

    Noise of known variance enters here: means are whitened by what spreads them, samples and noise together, and
    weigh as much as both leave.
    """
    counts, means = counts.double(), means.double()
    held = counts > 0
    per_sample = torch.where(held, blur.double().unsqueeze(1) / counts.clamp(min=0.5), 0.0)
    typical = float((per_sample * counts).sum() / counts.sum().clamp(min=1.0))
    d = scatter.shape[0]
    edge = math.sqrt(2.0 * d * float(blur.sum()))  # the scatter is blurred too: its noise has eigenvalues up to this
    whiten = whitening(scatter + freedom * typical * torch.eye(d, dtype=torch.float64), freedom, edge)
    weights = counts
    if typical > 0:
        whole = whiten.square().sum(dim=0)  # 1 / eigenvalue of what means were whitened by
        spread = 1.0 + (per_sample - typical).unsqueeze(-1) * whole
        weights = counts / spread.clamp(min=1e-3).mean(dim=-1)
    ones = torch.ones(len(counts), dtype=torch.float64)
    return Summaries(weights, means @ whiten, ones, ones, counts if labels else None), whiten


def grouped(
    got: Replies, describe: Describe, k: int | None = None, *, labels: bool = False
) -> tuple[Summaries, Groups]:
    """The summaries of those who replied, and the groups that they form (or k)."""
    known = read(got, describe)
    s, _ = summaries(known.counts, known.means, known.blur, known.scatter, float(known.freedom), labels=labels)
    return s, find_groups(s, k)
