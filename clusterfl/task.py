"""The learning problem, the same on server and client: a module's function, its loss, its fresh weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.losses import REGRESSION, LossName, PerSample, WeightedCrossEntropy, cross_entropy, squared_error
from clusterfl.models.dropout import GlobalDraws, drawing_nothing, dropping, key_dropouts
from clusterfl.models.fresh import fresh_weights
from clusterfl.models.layers import Dense, dense
from clusterfl.scores import LOSS, Metric, classification, regression
from clusterfl.tree import Tree, nbytes, select, stack

log = logging.getLogger(__name__)


class Task:
    """A model as functions of its tree of parameters and buffers.

    Any ``nn.Module`` that maps a batch to outputs will do; it is copied and never changed. The copy is only a
    skeleton: its weights are not used, except for parameters of layers whose initialisation we do not know, or where
    ``start="given"`` says that they are where training starts (a pretrained model).
    With ``classes`` targets are class numbers and outputs logits; without, both are numbers of any shape
    (regression). ``loss`` is a name or a function of outputs and targets that gives each sample's loss ``[B]``.
    ``metrics`` are measured beside those of the task, and ``metric`` names the main one of them all.
    ``public`` are samples that the server may use (FedDS's indicators), never a client's.
    """

    def __init__(
        self,
        module: nn.Module,
        classes: int | None = None,
        loss: LossName | PerSample = "cross-entropy",
        *,
        class_weights: Sequence[float] | None = None,
        metric: str | None = None,
        metrics: Sequence[Metric] = (),
        public: Tensor | None = None,
        start: Literal["fresh", "given"] = "fresh",
    ) -> None:
        self.module = module = deepcopy(module)
        self.classes = classes or 0
        self.per_sample = loss_of(loss, self.classes, class_weights)
        self.metrics = metrics_of(self.classes, metric, metrics)
        self.public = public
        self.start = start
        self.channels_last = False
        self._bound: Tree | None = None
        self._seen: set[bool] = set()  # modes in which the module was called: in the first call its draws are looked at
        self.drops = key_dropouts(module)
        self.params = tuple(n for n, p in module.named_parameters() if p.requires_grad)
        self.fixed = tuple(n for n, p in module.named_parameters() if not p.requires_grad)
        self.buffers = tuple(n for n, _ in module.named_buffers())
        if start not in ("fresh", "given"):
            raise ValueError(f"start={start!r} should be 'fresh' or 'given'")
        if not self.params:
            raise ValueError("module should have at least one trainable parameter")

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return not self.classes

    @property
    def metric(self) -> Metric:
        """The main one, which tables show and runs are compared by."""
        return self.metrics[0]

    def with_public(self, public: Tensor | None) -> Task:
        """The same task with these samples for the server."""
        task = copy(self)
        task.public = public
        return task

    def in_channels_last(self, channels_last: bool) -> Task:
        """The same task, with kernels in the memory order that convolutions on CPUs like, or not."""
        task = copy(self)
        task.channels_last = channels_last
        return task

    @cached_property
    def coupled(self) -> bool:
        """Whether samples of a batch act on each other (BatchNorm): padding would change the result."""
        return bool(self._norms)

    @cached_property
    def _norms(self) -> list[nn.Module]:
        return [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    @cached_property
    def dense(self) -> Dense | None:
        """The layers of a perceptron under a loss whose gradient is written out (parts/perceptron.py)."""
        known = self.per_sample is cross_entropy or self.squared
        return dense(self.module) if known and not self.fixed else None

    @property
    def squared(self) -> bool:
        """Whether the loss is the mean squared error."""
        return self.per_sample is squared_error

    @cached_property
    def last(self) -> str:
        """The name of the last layer that has parameters."""
        layers = [str(n) for n, m in self.module.named_modules() if any(True for _ in m.parameters(recurse=False))]
        return layers[-1]

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Parameters of the last layer: what FedPer and FCCA treat as the head."""
        prefix = f"{self.last}." if self.last else ""
        return tuple(n for n in self.params if n.startswith(prefix) and "." not in n[len(prefix) :])

    @cached_property
    def width(self) -> int:
        """How many features the last layer takes in."""
        layer = self.module.get_submodule(self.last)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"last layer={type(layer).__name__} should be Linear for a model with features")
        return layer.in_features

    @cached_property
    def size(self) -> int:
        """Bytes of one model, buffers included: what one transfer costs."""
        return self.trainable_size + self.fixed_size + sum(nbytes(t) for t in self.module.buffers())

    @cached_property
    def trainable_size(self) -> int:
        """Bytes of the parameters that train: what a gradient costs."""
        return sum(nbytes(p) for p in self.module.parameters() if p.requires_grad)

    @cached_property
    def fixed_size(self) -> int:
        """Bytes of the parameters that do not train."""
        return sum(nbytes(p) for p in self.module.parameters() if not p.requires_grad)

    def init(self, key: Key) -> Tree:
        """Fresh weights: PyTorch's default distributions, drawn from the key; or the module's own."""
        if self.start == "given":
            own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
            return {n: own[n].detach().clone() for n in (*self.params, *self.fixed, *self.buffers)}
        return select(fresh_weights(self.module, key), (*self.params, *self.fixed, *self.buffers))

    def init_stack(self, key: Key, k: int) -> Tree:
        """``k`` independent models."""
        if self.start == "given" and k > 1:
            raise ValueError(
                "start='given' has one model to start from, and should go with a method that makes its k out of one: "
                "start = 'kmeans-local' or 'identical-noise'"
            )
        return stack([self.init(keys.fold_in(key, j)) for j in range(k)])

    def logits(self, theta: Tree, x: Tensor) -> Tensor:
        """The model in evaluation mode."""
        return self._call(theta, x, training=False)

    def loss(self, theta: Tree, x: Tensor, y: Tensor, w: Tensor | None = None, *, key: Key | None = None) -> Tensor:
        """The mean training loss over the samples of weight 1; weight 0 masks padding.

        Training mode: BatchNorm writes its moments into ``theta``'s buffers, dropout draws from ``key``.
        """
        if key is None or not self.drops:
            return mean(self.per_sample(self._call(theta, x, training=True), y), w)
        with dropping(key):
            return mean(self.per_sample(self._call(theta, x, training=True), y), w)

    def eval_loss(self, theta: Tree, x: Tensor, y: Tensor, w: Tensor | None = None) -> Tensor:
        """The mean loss in evaluation mode."""
        return mean(self.per_sample(self.logits(theta, x), y), w)

    def probabilities(self, theta: Tree, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=-1)

    def features(self, theta: Tree, x: Tensor) -> Tensor:
        """What the last layer takes in ``[B, width]``, in evaluation mode: the encoder's output."""
        seen: list[Tensor] = []
        hook = self.module.get_submodule(self.last).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self.logits(theta, x)
        finally:
            hook.remove()
        return seen[-1]

    def check_draws(self, x: Tensor) -> None:
        """Refuses, before anything runs, a module that draws from the global generator in its forward pass."""
        try:
            with torch.no_grad():
                for training in (True, False):
                    self._call(self.init(keys.key(0)), x, training=training)
        except GlobalDraws:
            raise
        except Exception as e:  # what else is wrong with it is said where it is used
            log.debug("the model does not take a sample: %s", e)

    @contextmanager
    def bound(self, theta: Tree) -> Iterator[None]:
        """Within it the module itself holds ``theta``'s tensors, so that calls with ``theta`` go straight to it.

        ``functional_call`` swaps all tensors in and out at every call; a local training does it once.
        """
        split = [(*n.rpartition(".")[::2], t) for n, t in theta.items()]
        modules = [self.module.get_submodule(path) for path, _, _ in split]
        homes: list[dict[str, Any]] = [
            m._parameters if leaf in m._parameters else m._buffers
            for m, (_, leaf, _) in zip(modules, split, strict=True)
        ]
        before = [home[leaf] for home, (_, leaf, _) in zip(homes, split, strict=True)]
        outer, self._bound = self._bound, theta
        try:
            for home, (_, leaf, t) in zip(homes, split, strict=True):
                home[leaf] = t
            yield
        finally:
            self._bound = outer
            for home, (_, leaf, _), t in zip(homes, split, before, strict=True):
                home[leaf] = t

    def _call(self, theta: Tree, x: Tensor, *, training: bool) -> Tensor:
        self._set_mode(training, alone=training and self.coupled and x.shape[0] == 1)
        if training not in self._seen:
            with drawing_nothing(self.module):
                answer = self._answer(theta, x)
            self._seen.add(training)
            return answer
        return self._answer(theta, x)

    def _answer(self, theta: Tree, x: Tensor) -> Tensor:
        answer: Tensor
        answer = self.module(x) if self._bound is theta else functional_call(self.module, self._ordered(theta), (x,))
        return answer

    def _ordered(self, theta: Tree) -> Tree:
        """Kernels in the order of the images that they meet."""
        if not self.channels_last:
            return theta
        last = torch.channels_last
        return {n: t.contiguous(memory_format=last) if t.dim() == 4 else t for n, t in theta.items()}

    def _set_mode(self, training: bool, alone: bool) -> None:
        """A sample alone has no moments: BatchNorm then uses the running ones, and leaves them as they are."""
        normed = training and not alone
        if self.module.training is not training or (self._norms and self._norms[0].training is not normed):
            self.module.train(training)
            for m in self._norms:
                m.train(normed)


def mean(values: Tensor, w: Tensor | None) -> Tensor:
    """The mean of ``values`` over the samples of weight 1 (0 if there are none)."""
    if w is None:
        return values.mean()
    return (values * w).sum() / w.sum().clamp(min=1.0)


def loss_of(loss: LossName | PerSample, classes: int, class_weights: Sequence[float] | None = None) -> PerSample:
    """The function that a loss's name means with so many classes (0: targets are numbers)."""
    if class_weights is not None:
        if loss != "cross-entropy" or not classes:
            raise ValueError("class_weights should come with loss='cross-entropy' and classes")
        if len(class_weights) != classes or not all(0 <= w < float("inf") for w in class_weights):
            raise ValueError(f"class_weights={tuple(class_weights)} should be {classes} numbers of at least 0")
        return WeightedCrossEntropy(tuple(float(w) for w in class_weights))
    if callable(loss):
        return loss
    if loss == "cross-entropy":
        if not classes:
            raise ValueError("loss='cross-entropy' should come with classes; for numbers as targets use 'mse'")
        return cross_entropy
    if loss not in REGRESSION:
        known = ", ".join(repr(name) for name in ("cross-entropy", *REGRESSION))
        raise ValueError(f"loss={loss!r} should be one of {known}, or a function of outputs and targets")
    if classes:
        raise ValueError(f"loss={loss!r} should come without classes: its targets are numbers (classes={classes})")
    return REGRESSION[loss]


def metrics_of(classes: int, main: str | None, own: Sequence[Metric]) -> tuple[Metric, ...]:
    """All metrics of a task, the main one first; with ``main='loss'`` only the loss and the caller's own."""
    known = (LOSS,) if main == LOSS.name else classification(classes) if classes else regression()
    found = {m.name: m for m in (*known, *own)}
    if any(m.of is None for m in own):
        raise ValueError(f"metrics={[m.name for m in own]} should each have a function of outputs and targets")
    if len(found) < len(known) + len(own):
        raise ValueError(f"metrics={[m.name for m in own]} should have names of their own")
    if main is None:
        return tuple(found.values())
    if main not in found:
        raise ValueError(f"metric={main!r} should be one of {', '.join(map(repr, [*found, LOSS.name]))}")
    return tuple(sorted(found.values(), key=lambda m: m.name != main))
