"""FedFomo (Zhang et al., ICLR 2021): every client mixes the models of those others that lower its own loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, Statistic, on_client
from clusterfl.method import Method, Served, State, admitted
from clusterfl.parts.aggregate import mean_all
from clusterfl.parts.holdout import hold_out
from clusterfl.parts.local import SGD, eval_loss, losses, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, put, put_rows, repeat, row, take

EPS = 1e-5  # below the norm in a weight: a model may equal the one it is compared with


@dataclass(frozen=True)
class Federation(State):
    """The server's store: the last model of every client, and how useful others were to it."""

    models: Tree  # stack [N]
    pairs: Tensor  # [E] int64, ascending: i * N + n for every model n that client i was ever sent, its own at least
    weights: Tensor  # [E]: the sum of the weights that client i gave to model n (the paper's P, elsewhere 0)
    seen: Tensor  # [N] bool: who has ever sent a model

    def useful(self, i: int) -> Tensor:
        """``[N]``: a client's row of P."""
        n = len(self.seen)
        low, high = torch.searchsorted(self.pairs, torch.tensor([i * n, (i + 1) * n])).tolist()
        row = torch.zeros(n)
        row[self.pairs[low:high] - i * n] = self.weights[low:high]
        return row

    def with_weights(self, ids: Tensor, sent: Tensor, w: Tensor) -> Federation:
        """After clients ``ids`` ``[m]`` gave ``w`` ``[m, M]`` to the models ``sent`` ``[m, M]``."""
        given = (ids.unsqueeze(1) * len(self.seen) + sent).flatten()
        pairs = torch.cat([self.pairs, given]).unique()
        weights = torch.zeros(len(pairs))
        weights[torch.searchsorted(pairs, self.pairs)] = self.weights
        weights.index_add_(0, torch.searchsorted(pairs, given), w.flatten())
        return replace(self, pairs=pairs, weights=weights)


@dataclass(frozen=True)
class FedFomo(Method[Federation]):
    """M models down: a client takes a step towards each, as far as it lowers the loss on held-out data.

    Shapes: N clients, m in the cohort, M models sent to each.
    """

    name: ClassVar[str] = "fedfomo"
    summary: ClassVar[str] = "every client mixes M others' models by what they do for its validation loss"
    paper: ClassVar[str] = "Zhang, Sapra, Fidler, Yeung, Alvarez, ICLR 2021"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    models: int = option(5, "M: models sent to a client, its own among them")
    epsilon: float = option(0.3, "the chance that a place goes to a random model rather than to the most useful")
    epsilon_decay: float = option(0.05, "by which epsilon falls in a round")
    validation: float = option(0.2, "the share of its data that a client does not train on")

    def __post_init__(self) -> None:
        if self.models < 2:
            raise ValueError(f"models={self.models} should be at least 2: the client's own and another")
        for name, value in (("epsilon", self.epsilon), ("epsilon_decay", self.epsilon_decay)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}={value} should be between 0 and 1")
        if not 0.0 < self.validation < 1.0:
            raise ValueError(f"validation={self.validation} should be between 0 and 1")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Federation:
        n = len(cohort)
        if self.models > n:
            raise ValueError(f"models={self.models} should be at most the number of clients, {n}")
        own = torch.arange(n) * (n + 1)
        return Federation(repeat(first_net(task, key), n), own, torch.ones(n), torch.zeros(n, dtype=torch.bool))

    def round(self, state: Federation, cohort: Cohort) -> Federation:
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * cohort.round)
        sent = torch.zeros(len(state.seen), self.models, dtype=torch.int64)
        for i in cohort.ids.tolist():
            sent[i] = self.select(state, i, state.useful(i), epsilon, keys.fold_in(cohort.key, "select", i))
        got = cohort.run(self.mix_and_train, models=take(state.models, sent[cohort.ids]))
        state = state.with_weights(got.ids, sent[got.ids], got["w"])
        seen = put(state.seen, got.ids, torch.ones(len(got)))
        return replace(state, models=put_rows(state.models, got.ids, got["theta"]), seen=seen)

    def select(self, state: Federation, own: int, useful: Tensor, epsilon: float, key: Key) -> Tensor:
        """``[M]``: the client's own model, then others: the most useful, and random ones in epsilon of the places.

        Ties are in random order. Models that nobody has trained come last.
        """
        shuffled = keys.permutation(keys.fold_in(key, "order"), len(state.seen))
        shuffled = shuffled[shuffled != own]
        rank = torch.where(state.seen, useful, -torch.inf)[shuffled].argsort(descending=True, stable=True)
        places = self.models - 1
        greedy = places - int((keys.uniform(keys.fold_in(key, "explore"), places) < epsilon).sum())
        best = shuffled[rank][:greedy]
        rest = shuffled[~torch.isin(shuffled, best)]
        rest = rest[(~state.seen[rest]).to(torch.int8).argsort(stable=True)]
        return torch.cat([torch.tensor([own]), best, rest[: places - greedy]])

    def serve(self, state: Federation, ids: Tensor) -> Served:
        return Served(state.models, ids)

    def for_inputs(self) -> None:
        """Newcomers weigh models by their losses."""

    def admit(self, state: Federation, cohort: Cohort) -> Served:
        """A newcomer is at the mean of all models, gets M - 1 at random, mixes and trains for one round."""
        known = state.seen.nonzero().flatten() if bool(state.seen.any()) else torch.arange(len(state.seen))
        mean = repeat(mean_all(take(state.models, known)), 1)
        sent = [
            self.select(state, len(state.seen), torch.zeros(len(state.seen)), 1.0, keys.fold_in(cohort.key, int(i)))
            for i in cohort.ids
        ]
        got = cohort.run(self.mix_and_train, models=take(concat([state.models, mean]), torch.stack(sent)))
        return admitted(concat([mean, got["theta"]]), cohort, got, 1 + torch.arange(len(got)))

    def cost(self, task: Task) -> tuple[int, int]:
        return self.models * task.size, task.size + 4 * self.models

    @on_client(
        theta=Model(of="models", row=0),
        w=Statistic("how useful M models were to it"),
        before=Kept("the model that its last training began from"),
    )
    def mix_and_train(self, me: Client, models: Tree) -> dict[str, Payload]:
        training, validation = hold_out(me, self.validation)
        own = row(models, 0)
        before = me.tree("before") or own  # where the own model began its last training
        gain = eval_loss(validation, before) - losses(validation, models)
        far = _norms(models, before, me.task.params)
        w = torch.where(far > 0, gain / (far + EPS), 0.0)  # eq. 4; the same model gains nothing, whatever rounding says
        mixed = _mix(before, models, own, w.clamp(min=0.0))
        me.keep_tree("before", mixed)
        return {"theta": sgd(training, mixed, self.local), "w": w}


def _norms(models: Tree, before: Tree, names: tuple[str, ...]) -> Tensor:
    """``[M]``: the L2 distances of the models to ``before``."""
    squares = [(models[n] - before[n]).flatten(1).square().sum(dim=1) for n in names]
    return torch.stack(squares).sum(dim=0).sqrt()


def _mix(before: Tree, models: Tree, own: Tree, w: Tensor) -> Tree:
    """Eq. 3 with weights that sum to 1: ``before + sum w_n (theta_n - before)``; the own model if all are 0."""
    total = w.sum()
    w = w / torch.where(total > 0, total, 1.0)
    out = dict(own)
    for n, t in before.items():
        if t.is_floating_point():
            step = (models[n] - t) * w.reshape(-1, *([1] * t.dim()))
            out[n] = torch.where(total > 0, t + step.sum(dim=0), own[n])
    return out
