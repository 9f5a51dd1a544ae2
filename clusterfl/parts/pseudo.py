"""Pseudo samples out of a model alone: MD-ICFL's two samplers (its section 3.3).

Both look for inputs that the model is sure of and that lie near the prior mean; they differ in what is
searched. Shapes: pseudo samples [C, M, *shape]; labels and energies [B].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.keys import Key
from clusterfl.models.generator import Generator
from clusterfl.parts.adam import adam, gradient_of
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Prior:
    """The second term of eqs. 6 and 7: how far from the mean of the inputs a pseudo sample may lie."""

    penalty: float = 0.1
    mean: float = 0.0
    squared: bool = False

    def energy(self, task: Task, theta: Tree, x: Tensor, y: Tensor) -> Tensor:
        """``[B]``: the loss of the wanted label plus half the penalty times the distance from the mean."""
        off = (x - self.mean).square().flatten(1).sum(dim=1)
        # a root has no gradient at the mean itself
        distance = off if self.squared else (off + 1e-12).sqrt()
        return task.per_sample(task.logits(theta, x), y) + 0.5 * self.penalty * distance


class Sampler(Protocol):
    """What is searched, as a tree; the value to lower; and the samples that it stands for."""

    @property
    def lr(self) -> float: ...

    def start(self, me: Client) -> Tree: ...

    def value(self, me: Client, theta: Tree, found: Tree, key: Key) -> Tensor: ...

    def draw(self, me: Client, found: Tree) -> Tensor: ...


@dataclass(frozen=True)
class BackSearch:
    """Eq. 6: the samples themselves are searched, from Gaussian noise."""

    samples: int
    prior: Prior
    lr: float = 0.1

    def start(self, me: Client) -> Tree:
        return {"x": keys.normal(keys.fold_in(me.key, "noise"), me.task.classes, self.samples, *me.shape)}

    def value(self, me: Client, theta: Tree, found: Tree, key: Key) -> Tensor:
        y = torch.arange(me.task.classes, device=key.device).repeat_interleave(self.samples)
        # a sum, so that a sample's gradient does not depend on how many there are
        return self.prior.energy(me.task, theta, found["x"].flatten(0, 1), y).sum()

    def draw(self, me: Client, found: Tree) -> Tensor:
        return found["x"]


@dataclass(frozen=True)
class GeneratorSearch:
    """Eq. 7: a conditional generator's weights are searched; the samples are drawn from it at the end."""

    samples: int
    prior: Prior
    lr: float = 0.01
    batch: int = 100
    noise: int = 16
    hidden: int = 256

    def generator(self, me: Client) -> Generator:
        return Generator(me.shape, me.task.classes, self.noise, self.hidden)

    def start(self, me: Client) -> Tree:
        return self.generator(me).init(keys.fold_in(me.key, "generator"))

    def value(self, me: Client, theta: Tree, found: Tree, key: Key) -> Tensor:
        classes = torch.arange(me.task.classes, device=key.device)
        y = keys.randint(keys.fold_in(key, "labels"), me.task.classes, self.batch)
        noise = keys.normal(key, self.batch, self.noise)
        x = self.generator(me).forward(found, noise, (y.unsqueeze(1) == classes).float())
        return self.prior.energy(me.task, theta, x, y).mean()

    def draw(self, me: Client, found: Tree) -> Tensor:
        return self.generator(me).sample(found, keys.fold_in(me.key, "draw"), self.samples)


def search(me: Client, theta: Tree, sampler: Sampler, found: Tree, iterations: int) -> Tree:
    """``found`` after so many steps of Adam on the sampler's value; the model ``theta`` stays fixed."""

    steps = keys.split(keys.fold_in(me.key, "search"), iterations + 1)

    def gradient(found: Tree, step: int) -> Tree:
        return gradient_of(lambda tree: sampler.value(me, theta, tree, steps[step]), found, stacked=me.stacked)

    return adam(gradient, found, iterations, sampler.lr)
