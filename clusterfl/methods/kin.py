"""Kin: clients say once what their data looks like, the server finds who belongs together, then FedAvg per group.

Nobody says how many groups there are, and nothing is trained to find them. docs/methods/kin.md derives the evidence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import METRICS, Cohort, Replies, Spent
from clusterfl.errors import NoReplies
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Payload, on_client
from clusterfl.method import Clusters, Method, Served, exchanged, log_clusters
from clusterfl.parts.aggregate import Mean, Rule, Weights, bytes_of, check_rule, weight_field
from clusterfl.parts.describe import Describe, Unit, kinds
from clusterfl.parts.evidence import to_groups
from clusterfl.parts.explained import blurred
from clusterfl.parts.gaussian import check_delta, epsilon_of, multiplier
from clusterfl.parts.kinship import find_groups
from clusterfl.parts.local import SGD
from clusterfl.parts.members import Members, Personal, own_model
from clusterfl.parts.newcomers import Place, by_inputs, by_labels
from clusterfl.parts.regroup import candidates, common_body, followed, joined_again, mixed, renamed, with_means
from clusterfl.parts.start import first_net
from clusterfl.parts.told import Told
from clusterfl.parts.trial import PATIENCE, noted, other_half, verdict
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, put, put_rows, repeat, row, rows, stack, take

Features = Literal["random", "model"]
By = Literal["concept", "concept+labels"]
Share = Literal["none", "body"]
Either = Literal["mean", "best"]
Newcomers = Literal["labels", "inputs"]


@dataclass(frozen=True)
class KinState(Told, Clusters):
    """The groups' models, and what every client has said about its data."""

    trial: Tensor  # [K] int64: rounds until a group has to show that it pays; -1: it has
    scores: (
        Tensor  # [N, 2]: on trial, a client's latest errors with its group's model and the joint one, by its round's
    )
    tried: Tensor  # [N, 2] bool: whether it has had that model
    joint: Tree  # the model of all groups together that those on trial are compared with, if there are any
    joined: Tensor  # [N] bool: whose group did not pay
    maybe: Tensor  # [N, K] bool: the groups that a client may belong to
    probe: Tree  # the model whose encoder describes data, if any


@dataclass(frozen=True)
class Kin(Method[KinState]):
    """FedAvg within groups that are found by evidence before any training."""

    name: ClassVar[str] = "kin"
    summary: ClassVar[str] = "finds groups, and how many, from class means sent once before training; FedAvg per group"
    paper: ClassVar[str] = "this project"
    runs = (Describe, Members, Place)

    local: SGD = SGD()
    groups: int | None = option(None, "how many groups; unset: as many as there is evidence for")
    by: By = option("concept", "what tells groups apart: what a class looks like, or also how often it comes")
    features: Features = option("random", "of samples: fixed random ones, or the model's own after a warm-up")
    dims: int = option(64, "features of a sample")
    warmup: int = option(5, "rounds of FedAvg before features = 'model' looks at clients")
    trial: int = option(
        4,
        "rounds until it is asked whether groups do better than the joint model, and thrice as many at most; 0: never",
    )
    held: float = option(0.2, "share of its samples that a client holds out to see what pays: groups, its own training")
    either: Either = option("mean", "what a client uses that may be in several groups: their mean, or the likeliest")
    share: Share = option("none", "what all groups have in common: nothing, or all but the head")
    personal: Personal = option("head", "what a client does to its group's model: nothing, or train all, or its head")
    tune_epochs: int = option(1, "epochs of the personal training")
    newcomers: Newcomers = option("labels", "what a newcomer is placed by: its labelled samples, or its inputs alone")
    watch: bool = option(True, "clients look in every round whether their data has changed, and say so")
    epsilon: float | None = option(None, "privacy of the statistics, each time they are sent; unset: no noise")
    delta: float = option(1e-5, "the chance with which epsilon may fail")
    unit: Unit = option("sample", "what epsilon hides: one sample of a client, or a whole client")
    weights: Weights = option("size", "how much a client counts in its group's mean")
    aggregate: Rule = option(Mean(), "how a group's models become one; others than the mean withstand liars")

    def __post_init__(self) -> None:
        at_least(1, self, "groups", "dims", "tune_epochs")
        at_least(0, self, "warmup", "trial")
        if self.trial == 1:
            raise ValueError("trial=1 should be 0 or at least 2: after one round groups have hardly parted")
        above(0, self, "epsilon", "held")
        check_delta(self.delta)
        if not self.held < 1:
            raise ValueError(f"held={self.held} should be below 1")
        words = {"by": By, "features": Features, "either": Either, "share": Share, "personal": Personal}
        for name, known in {**words, "newcomers": Newcomers, "unit": Unit, "weights": Weights}.items():
            one_of(known, self, name)
        check_rule(self.aggregate)

    @property
    def description(self) -> Describe:
        return Describe(self.dims, multiplier(self.epsilon, self.delta) if self.epsilon else 0.0, self.unit)

    @property
    def counts_labels(self) -> bool:
        return self.by == "concept+labels"

    @property
    def members(self) -> Members:
        return Members(self.local, self.held, self.tune_epochs, self.weights, self.watch)

    # -- the server ------------------------------------------------------------------------------------

    def init(self, task: Task, cohort: Cohort, key: Key) -> KinState:
        n, no = len(cohort), torch.zeros(len(cohort), dtype=torch.bool)
        if self.groups is not None and self.groups > n:
            raise ValueError(f"groups={self.groups} should be at most the number of clients, {n}")
        return KinState(
            centers=repeat(first_net(task, key), 1),
            assign=torch.zeros(n, dtype=torch.int64),
            trial=torch.tensor([self.trial]),
            scores=torch.zeros(n, 2),
            tried=torch.zeros(n, 2, dtype=torch.bool),
            joint={},
            joined=no,
            maybe=torch.ones(n, 1, dtype=torch.bool),
            known=no,
            times=torch.zeros(n, dtype=torch.int64),
            stale=no,
            counts=torch.zeros(n, kinds(task)),
            means=torch.zeros(n, kinds(task), 0),
            blur=torch.zeros(n),
            scatter=torch.zeros(0, 0, dtype=torch.float64),
            freedom=torch.zeros((), dtype=torch.float64),
            probe={},
        )

    def round(self, state: KinState, cohort: Cohort) -> KinState:
        before, everybody = state.assign, cohort
        if self.features == "random" or cohort.round >= self.warmup:
            state = self.listen(state, cohort)
            cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        state = self.train_groups(state, cohort)
        log_clusters(everybody, before, state.assign, state.k)
        everybody.log(either=(state.maybe[state.known].sum(dim=1) > 1).sum().item(), joined=state.joined.sum().item())
        return state

    def listen(self, state: KinState, cohort: Cohort) -> KinState:
        """Clients that are new, or whose data has changed, describe it; then everybody is grouped again."""
        ask = cohort.ids[~state.known[cohort.ids] | state.stale[cohort.ids]]
        if not len(ask):
            return state
        if self.features == "model" and not state.probe:
            state = replace(state, probe=row(state.centers, 0))
        sent: dict[str, Payload] = {"theta": state.probe} if state.probe else {}
        state = state.asked(ask)
        with suppress(NoReplies):
            # a conversation of its own: training draws the same batches with it and without
            aside = Cohort(cohort.engine, ask.sort().values, keys.fold_in(cohort.key, "describe"), cohort.round)
            got = aside.run(self.description.describe, sent)
            return self.regroup(state.heard(got, self.description))
        return state

    def regroup(self, state: KinState) -> KinState:
        """The groups that there is evidence for, over everybody known; each goes on from its members' models."""
        ids = state.speakers
        s, _ = state.summaries(ids, labels=self.counts_labels)
        found = find_groups(s, self.groups if self.groups is None else min(self.groups, len(ids)))
        labels = joined_again(found.labels, state.joined[ids])
        labels = renamed(labels, state.assign[ids])
        maybe = candidates(to_groups(found.turned(s), labels, found.spread), labels)
        return self.moved(state, ids, labels, maybe)

    def moved(self, state: KinState, ids: Tensor, labels: Tensor, maybe: Tensor) -> KinState:
        """Clients ``ids`` in new groups. A group's model is the mean of the models that its members had."""
        k, n = int(labels.max()) + 1, len(state.known)
        mass = torch.zeros(k, state.k, dtype=torch.float64)
        mass.index_put_((labels, state.assign[ids]), state.sizes[ids] + 1e-9, accumulate=True)
        centers = stack([mixed(state.centers, line) for line in mass])
        trial = state.trial[mass.argmax(dim=1)]
        assign = put(torch.full((n,), int(torch.bincount(labels).argmax())), ids, labels)  # others wait in the largest
        maybe = put(torch.ones(n, k, dtype=torch.bool), ids, maybe)
        tried = state.tried & (assign == state.assign).unsqueeze(1)
        return replace(state, centers=centers, assign=assign, trial=trial, maybe=maybe, tried=tried)

    def train_groups(self, state: KinState, cohort: Cohort) -> KinState:
        """FedAvg in every group. Of groups on trial half the members, in turn, train the joint model, and all hold
        samples out and say how well the model that they got would do on these."""
        ids, group = cohort.ids, state.assign[cohort.ids]
        tried = (state.trial[group] > 0) & (state.k > 1) & (self.groups is None)
        models, trains = state.centers, state.assign
        if bool(tried.any()):
            sizes = torch.zeros(state.k, dtype=torch.float64).index_add_(0, state.assign, state.sizes)
            models = concat([models, repeat(state.joint or mixed(models, sizes), 1)])
            away = ids[tried][other_half(ids[tried], state.assign, cohort.round)]
            trains = put(trains, away, torch.full((len(away),), state.k))
        mean = self.aggregate.by(models, trains, weight_field(self.weights))
        answers = []
        for some, procedure in ((ids[~tried], self.members.train), (ids[tried], self.members.try_out)):
            if len(some):
                with suppress(NoReplies):
                    answers.append(cohort.only(some).run(procedure, into=mean, theta=take(models, trains[some])))
        if not answers:
            raise NoReplies("Kin.train")
        ids, centers = torch.cat([got.ids for got in answers]), mean.result()
        if rows(centers) > state.k:
            state = replace(state, joint=row(centers, state.k))
            centers = take(centers, torch.arange(state.k))
        if self.share == "body":
            centers = common_body(centers, cohort.task.head, torch.bincount(state.assign[ids], minlength=state.k))
        if self.watch:
            news = torch.cat([got["changed"] for got in answers]) > 0
            state = replace(state, stale=put(state.stale, ids, state.stale[ids] | news))
        state = replace(state, centers=centers)
        for got in answers:
            if "losses" in got.fields:
                state = self.judge(self.note(state, got, trains[got.ids] == state.k), cohort)
        return state

    def note(self, state: KinState, got: Replies, joint: Tensor) -> KinState:
        """What clients said of the model that they had, of their group's or of the ``joint`` one."""
        errors, column = noted(got["losses"], joint), joint.long().unsqueeze(1)
        if errors is None:
            return state
        scores = state.scores[got.ids].scatter(1, column, errors.unsqueeze(1))
        tried = state.tried[got.ids].scatter(1, column, True)
        return replace(state, scores=put(state.scores, got.ids, scores), tried=put(state.tried, got.ids, tried))

    def judge(self, state: KinState, cohort: Cohort) -> KinState:
        """A group must pay: where members do better with the joint model than in it by more than chance, it is joined.
        While it is not known whether groups pay they stay on trial and are asked in every round, if they are clear;
        others need to pay at once."""
        due = state.trial == 1
        state = replace(state, trial=torch.where(state.trial > 1, state.trial - 1, state.trial))
        if not bool(due.any()):
            return state
        both = state.tried.all(dim=1) & due[state.assign]
        own, joint = state.scores[both].unbind(dim=1)
        fails, pays = verdict(joint - own, state.assign[both], state.k)
        s, _ = state.summaries(state.speakers, labels=self.counts_labels)
        fails = due if not pays and blurred(s, state.assign[state.speakers]) else fails
        again = not pays and cohort.round + 1 < PATIENCE * self.trial
        state = replace(state, trial=torch.where(due, 1 if again else -1, state.trial))
        cohort.log(useless=fails.sum().item())
        state = self.join(state, fails) if bool(fails.any()) else state
        return state if bool((state.trial > 0).any()) else replace(state, joint={})

    def join(self, state: KinState, fails: Tensor) -> KinState:
        """Groups that do not pay become one, which goes on from the joint model."""
        ids = state.speakers
        joined = state.joined | (fails[state.assign] & state.known)
        labels = joined_again(state.assign[ids], joined[ids])
        maybe = followed(state.maybe[ids], state.assign[ids], labels)
        after = self.moved(replace(state, joined=joined), ids, labels, maybe)
        home = labels[joined[ids]][:1]
        centers = put_rows(after.centers, home, repeat(state.joint, 1))
        return replace(after, centers=centers, trial=put(after.trial, home, torch.tensor(-1)))

    def serve(self, state: KinState, ids: Tensor) -> Served:
        served = self.served(state, state.assign[ids], state.maybe[ids])
        return replace(served, maybe=state.maybe[ids] & state.known[ids].unsqueeze(1))  # of others nothing is known

    def served(self, state: KinState, assign: Tensor, maybe: Tensor) -> Served:
        """Models of groups, and the means of groups for those that may be in several."""
        models, index = with_means(state.centers, assign, maybe) if self.either == "mean" else (state.centers, assign)
        return Served(models, index, personal=self.personal != "none", groups=assign, maybe=maybe)

    def admit(self, state: KinState, cohort: Cohort) -> Served:
        """Newcomers are placed by what they say about their data; nothing is trained."""
        n = len(cohort)
        if not bool(state.known.any()):
            return self.served(state, torch.zeros(n, dtype=torch.int64), torch.ones(n, 1, dtype=torch.bool))
        place = by_inputs if self.newcomers == "inputs" else by_labels
        got, table = place(Place(self.description, self.counts_labels), cohort, state, state.assign, state.probe)
        at = torch.searchsorted(cohort.ids, got.ids, sorter=cohort.ids.argsort())
        at = cohort.ids.argsort()[at]
        labels = table.argmax(dim=1)
        largest = int(torch.bincount(state.assign[state.known]).argmax())
        assign = put(torch.full((n,), largest), at, labels)
        maybe = put(torch.ones(n, state.k, dtype=torch.bool), at, candidates(table, labels))
        return self.served(state, assign, maybe)

    def for_inputs(self) -> Kin:
        return replace(self, newcomers="inputs", personal="none")

    def reads_again(self) -> bool:
        return self.groups is None and self.trial > 0  # on trial a client trains a model to be its own, too

    def spent(self, state: KinState | None = None) -> Spent | None:
        if self.epsilon is None:
            return None
        times = 1 if state is None else int(state.times.max())
        bare = [
            f"{label}: {name}"
            for label, declared in exchanged(self).items()
            for name, kind in declared.items()
            if not isinstance(kind, Kept) and not getattr(kind, "bound", None)
        ]
        epsilon = epsilon_of(self.description.noise, self.delta, times) if times else 0.0
        return Spent(epsilon, self.delta, times, (*bare, METRICS), unit=self.unit)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights) + (4 if self.watch else 0)

    # -- the client ------------------------------------------------------------------------------------

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": own_model(me, theta, self.personal, self.members.tuning, self.held)}
