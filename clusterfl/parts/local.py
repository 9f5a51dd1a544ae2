"""Local training: stochastic gradient descent, or Adam, on a client's own data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Batch, Client
from clusterfl.fields import at_least, at_most, option
from clusterfl.message import Loss, Model, Payload, Weight, on_client
from clusterfl.method import Procedures, Registered
from clusterfl.parts import perceptron
from clusterfl.parts.optimizers import Adam, Moments, Optimizer, PlainSGD
from clusterfl.parts.schedules import Schedule
from clusterfl.scores import answered
from clusterfl.tree import Tree, row, rows, select

Gradient = Callable[[Client, Tree, Batch], Tree]


@dataclass(frozen=True)
class SGD(Registered):
    """The local rule, by default SGD. Momentum and moments start at zero every round; the step size is
    ``lr * lr_decay ** round``, times the factor of the ``schedule`` if there is one."""

    lr: float = option(0.1, "step size")
    momentum: float = option(0.0, "share of the last step that goes on; it starts at zero every round")
    weight_decay: float = option(0.0, "pull of the weights towards zero, as a multiple of them")
    epochs: int | None = option(1, "passes over the client's data in a round")
    steps: int | None = option(None, "mini-batches in a round, in place of epochs")
    batch: int = option(32, "samples in a mini-batch")
    lr_decay: float = option(1.0, "factor on the step size per round")
    clip: float | None = option(None, "the gradient's norm is cut to this")
    optimizer: Optimizer | None = option(
        None, "sgd | adam | adamw, or a table with that name and its numbers; unset: sgd"
    )
    schedule: Schedule | None = option(
        None, "warm-up | cosine | step over rounds, or a table with that name and numbers"
    )

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            # epochs has a default: naming steps alone is enough
            object.__setattr__(self, "epochs", None)
        if self.steps is None and self.epochs is None:
            raise ValueError("epochs=None and steps=None: one of them should be given")
        if isinstance(self.optimizer, PlainSGD):
            object.__setattr__(self, "optimizer", None)  # two words for the same rule
        if self.optimizer is not None and self.momentum:
            raise ValueError(
                f"momentum={self.momentum} should be 0 with optimizer {self.optimizer.name!r}: beta1 takes its place"
            )
        at_least(0, self, "lr", "momentum", "weight_decay", "lr_decay")
        at_least(1, self, "batch", "epochs", "steps")
        at_most(torch.finfo(torch.float32).max, self, "lr", "momentum", "weight_decay", "lr_decay", "clip")

    def rate(self, round: int) -> float:
        """The step size of a round; the first is 0."""
        rate = self.lr * self.lr_decay**round
        return rate if self.schedule is None else rate * self.schedule.factor(round)

    def longer(self, times: int) -> SGD:
        """The same rule for ``times`` as many epochs or steps."""
        if self.steps is not None:
            return replace(self, steps=times * self.steps)
        return replace(self, epochs=times * (self.epochs or 0))

    def batches_of(self, n: int) -> int:
        """Local steps of a client with ``n`` samples."""
        return self.steps if self.steps is not None else (self.epochs or 0) * -(-n // self.batch)

    def under(self, me: Client, grad: Gradient) -> Client:
        """The client as it trains by this rule with these gradients; a rule may change how these are taken."""
        return me


def gradient(me: Client, theta: Tree, batch: Batch) -> Tree:
    """The gradient of the batch's mean loss; BatchNorm's moments are updated inside ``theta``."""
    task = me.task
    if me.rule is not None:
        ruled: Tree = me.rule.gradient(me, theta, batch)
        return ruled
    if task.dense is not None:
        x, y, w, *_ = batch
        return perceptron.gradient(perceptron.factors(task.dense, theta, x, y, w, squared=task.squared))
    key = batch.key if task.drops else None
    if me.stacked:

        def loss(params: Tree, buffers: Tree) -> tuple[Tensor, Tree]:
            value = task.loss({**theta, **params, **buffers}, batch.x, batch.y, batch.w, key=key)
            return value, buffers

        moments = select(theta, task.buffers)
        grads: Tree
        grads, moments = torch.func.grad(loss, has_aux=True)(select(theta, task.params), moments)
        theta.update(moments)
        return grads
    leaves = [theta[n] for n in task.params]
    if not leaves[0].requires_grad:
        leaves = [t.detach().requires_grad_() for t in leaves]
        theta = {**theta, **dict(zip(task.params, leaves, strict=True))}
    with torch.enable_grad():
        value = task.loss(theta, batch.x, batch.y, batch.w, key=key)
        found = torch.autograd.grad(value, leaves, allow_unused=True)
    unused = (torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True))
    return dict(zip(task.params, unused, strict=True))


def sgd(
    me: Client,
    theta: Tree,
    rule: SGD,
    grad: Gradient = gradient,
    *,
    only: tuple[str, ...] | None = None,
    stream: int = 0,
) -> Tree:
    """``theta`` after the rule's epochs or steps; ``grad`` replaces the plain gradient, ``only`` limits
    which parameters move."""
    names = me.task.params if only is None else only
    me = rule.under(me, grad)
    theta = writable(me, theta)
    batches = me.batches(size=rule.batch, epochs=rule.epochs, steps=rule.steps, stream=stream)
    if me.stacked:
        _descend(me, theta, rule, grad, names, batches)
        return theta
    for n in me.task.params:
        theta[n].requires_grad_()
    with torch.no_grad(), me.task.bound(theta):
        _descend(me, theta, rule, grad, names, batches)
    return {n: t.detach() for n, t in theta.items()}


def _descend(
    me: Client, theta: Tree, rule: SGD, grad: Gradient, names: tuple[str, ...], batches: Iterable[Batch]
) -> None:
    """Steps of SGD, written into ``theta``."""
    lr, mu, decay = rule.rate(me.round), rule.momentum, rule.weight_decay
    dense, squared = me.task.dense, me.task.squared
    adam = rule.optimizer if isinstance(rule.optimizer, Adam) else None
    plain = grad is gradient and me.rule is None
    if dense is not None and plain and not (mu or decay or adam) and rule.clip is None:
        if me.stacked:
            theta.update({n: theta[n] + (me.key * 0).to(theta[n].dtype) for n in names})  # a copy for each client
        for x, y, w, *_ in batches:
            if me.stacked:
                perceptron.Step.apply(dense, names, lr, squared, tuple(theta), x, y, w, *theta.values())  # type: ignore[no-untyped-call]
            else:
                perceptron.step(dense, theta, names, lr, x, y, w, squared=squared)
        return
    speed: Tree = {}
    moments = Moments()
    for t, batch in enumerate(batches):
        got = grad(me, theta, batch)
        step = [got[n] for n in names]
        if rule.clip is not None:
            step = clipped(step, rule.clip)
        if decay and not (adam and adam.decoupled):
            step = [g + decay * theta[n] for n, g in zip(names, step, strict=True)]
        if adam:
            step = moments.direction(adam, step, batch.active)
            if decay and adam.decoupled:
                step = [s + decay * theta[n] for n, s in zip(names, step, strict=True)]
        if mu:
            step = [speed[n] * mu + g if n in speed else g for n, g in zip(names, step, strict=True)]
        if batch.active is not None:  # a batch of padding moves nothing, not even momentum
            if mu:
                for n, s in zip(names, step, strict=True):
                    speed[n] = torch.where(batch.active, s, speed.get(n, torch.zeros_like(s)))
            step = [s * batch.active for s in step]
        elif mu:
            speed = dict(zip(names, step, strict=True))
        if me.stacked and t == 0:
            # the first step makes the copy: an update that fills new memory costs more than the step's arithmetic
            theta.update({n: torch.sub(theta[n], s, alpha=lr) for n, s in zip(names, step, strict=True)})
        elif me.stacked:
            for n, s in zip(names, step, strict=True):
                theta[n].sub_(s, alpha=lr)
        else:
            torch._foreach_add_([theta[n] for n in names], step, alpha=-lr)


def writable(me: Client, theta: Tree) -> Tree:
    """A copy that local training may change in place."""
    if not me.stacked:
        dense = torch.contiguous_format
        last = torch.channels_last if me.task.channels_last else dense
        return {n: t.detach().clone(memory_format=last if t.dim() == 4 else dense) for n, t in theta.items()}
    # inside vmap a shared tensor has no client axis yet; buffers that are written in place need one
    zero = me.key * 0
    return {n: t + zero.to(t.dtype) if n in me.task.buffers else t for n, t in theta.items()}


def clipped(grads: list[Tensor], limit: float) -> list[Tensor]:
    norm = torch.sqrt(torch.stack([g.square().sum() for g in grads]).sum())
    scale = (limit / norm.clamp(min=1e-12)).clamp(max=1.0)
    return [g * scale for g in grads]


def eval_loss(me: Client, theta: Tree) -> Tensor:
    """The mean loss on the whole train shard, in evaluation mode."""
    total = torch.zeros((), device=me.key.device)
    for x, y, w in me.train.pieces():
        losses = me.task.per_sample(me.task.logits(theta, x), y)
        total = total + (losses if w is None else losses * w).sum()
    return total / me.size.clamp(min=1.0)


def eval_error(me: Client, theta: Tree) -> Tensor:
    """The share of the train shard's samples that a model gets wrong; of numbers the mean loss."""
    if me.task.regression:
        return eval_loss(me, theta)
    total = torch.zeros((), device=me.key.device)
    for x, y, w in me.train.pieces():
        wrong = (answered(me.task.logits(theta, x)) != y).to(total.dtype)
        total = total + (wrong if w is None else wrong * w).sum()
    return total / me.size.clamp(min=1.0)


def full_gradient(me: Client, theta: Tree) -> Tree:
    """The gradient of the mean loss over the whole train shard; BatchNorm's moments are updated inside ``theta``."""
    total: Tree = {}
    for j, (x, y, w) in enumerate(me.train.pieces()):
        share = (len(y) if w is None else w.sum()) / me.size.clamp(min=1.0)
        part = gradient(me, theta, Batch(x, y, w, keys.fold_in(me.key, "full", j)))
        total = {n: g * share + total[n] if total else g * share for n, g in part.items()}
    return total


def losses(me: Client, centers: Tree) -> Tensor:
    """``[K]``: the mean train loss of every centre on this client."""
    if me.task.dense is not None:
        total = torch.zeros(rows(centers), device=me.key.device)
        for x, y, w in me.train.pieces():
            each = perceptron.losses(me.task.dense, centers, x, y, squared=me.task.squared)
            total = total + (each if w is None else each * w).sum(dim=-1)
        return total / me.size.clamp(min=1.0)
    if me.stacked:
        stacked: Tensor = torch.func.vmap(lambda theta: eval_loss(me, theta))(centers)
        return stacked
    return torch.stack([eval_loss(me, row(centers, k)) for k in range(rows(centers))])


@dataclass(frozen=True)
class Train(Procedures):
    """Plain local training as a procedure of its own, for warm-ups and admissions."""

    rule: SGD

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.rule), "n": me.size}


@dataclass(frozen=True)
class Losses(Procedures):
    """The train loss of every centre, as a procedure of its own."""

    @on_client(losses=Loss())
    def losses(self, me: Client, centers: Tree) -> dict[str, Payload]:
        return {"losses": losses(me, centers)}
