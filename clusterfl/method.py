"""What a method is: hyper-parameters, a start, a round, and which model each client uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies, Spent
from clusterfl.keys import Key
from clusterfl.message import Declaration, Fields, Kept, on_client
from clusterfl.task import Task
from clusterfl.tree import Tree, rows


class Registered:
    """Subclasses can be named in messages and files; nothing else can be built from them."""

    _registry: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Registered._registry[cls.tag()] = cls

    @classmethod
    def tag(cls) -> str:
        return f"{cls.__module__}:{cls.__qualname__}"

    @staticmethod
    def find(tag: str) -> type[Any]:
        try:
            return Registered._registry[tag]
        except KeyError:
            raise ValueError(f"class={tag!r} should be one this program has imported") from None


class Procedures(Registered):
    """A frozen dataclass of hyper-parameters with ``@on_client`` procedures; far sides rebuild it by name."""

    @classmethod
    def declared(cls) -> dict[str, Declaration]:
        """What every client procedure of this class replies and keeps, by "Class.procedure"."""
        names = [n for n in dir(cls) if hasattr(getattr(cls, n), "__on_client__")]
        return {f"{cls.__name__}.{n}": getattr(cls, n).__on_client__ for n in names}


class State(Registered):
    """A frozen dataclass of tensors, trees, numbers and other states; saved as it is."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Served:
    """Which model each client uses: ``models`` is a stack, ``index`` one row number per client.

    With ``personal`` every client passes its row through the method's ``personalise`` first, together
    with what is ``shared`` (MCFL: all K models). ``by_data`` says that the client chooses its model by the data at
    hand, so that on another cluster's data it would choose another one. ``groups`` is the cluster that each client
    counts in, where that is not its model's row (a client between two clusters uses their mean).
    """

    models: Tree
    index: Tensor
    personal: bool = False
    shared: Fields = field(default_factory=dict)
    by_data: bool = False
    groups: Tensor | None = None
    maybe: Tensor | None = None  # [m, K] bool: the clusters that a client may be in, where a method says so

    def either(self) -> dict[int, list[int]]:
        """The clusters of each client that may be in several, by its place."""
        if self.maybe is None:
            return {}
        counts = self.maybe.sum(dim=1)
        several = counts > 1
        where = self.maybe[several].nonzero()[:, 1].split(counts[several].tolist())
        return {i: some.tolist() for i, some in zip(several.nonzero().flatten().tolist(), where, strict=True)}

    @property
    def clusters(self) -> Tensor:
        """The cluster that each client counts in."""
        return self.index if self.groups is None else self.groups

    @property
    def k(self) -> int:
        return rows(self.models)


Need = Literal["hidden layer", "public samples"]


class Method(Procedures, ABC, Generic[S]):
    """A federated method. Subclasses are final frozen dataclasses that hold hyper-parameters only."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `clusterfl methods`
    paper: ClassVar[str] = ""
    clustered: ClassVar[bool] = True
    mixture: ClassVar[bool] = False  # whether clients answer with a mixture of K models, not with one of them
    needs: ClassVar[tuple[Need, ...]] = ()  # of data and model, beside training data
    waits: ClassVar[str] = ""  # the field that says after how many rounds its own idea begins
    needs_classes: ClassVar[str] = ""  # what for, where its targets cannot be numbers
    runs: ClassVar[tuple[type[Procedures], ...]] = ()  # procedures beside its own that it runs on clients
    sums: ClassVar[bool] = False  # its rounds need only sums of replies (by cluster): secure aggregation may hide each
    rereads: ClassVar[bool] = False  # its clients read a sample more often than the epochs of their rule say

    @abstractmethod
    def init(self, task: Task, cohort: Cohort, key: Key) -> S:
        """The state before the first round. ``cohort`` is every training client and may be asked."""

    @abstractmethod
    def round(self, state: S, cohort: Cohort) -> S:
        """One communication round with the sampled clients."""

    @abstractmethod
    def serve(self, state: S, ids: Tensor) -> Served:
        """The models that clients ``ids`` use, and which one each of them uses."""

    def admit(self, state: S, cohort: Cohort) -> Served:
        """Models for clients that were never in training; ``index`` is aligned with ``cohort.ids``."""
        raise NotDefined(f"admitting unseen clients is not defined for this method ({self.name})")

    def cost(self, task: Task) -> tuple[int, int]:
        """(down, up): bytes per participating client in an ordinary round, by the paper's formula.

        The conformance suite compares it with what was metered.
        """
        raise NotDefined(f"cost={self.name} should be defined by the method")

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Any) -> Mapping[str, Any]:
        """What a client makes of the model it was served, as ``{"theta": …}``; ``shared`` is ``Served.shared``.

        Of a ``mixture`` it is a stack of K models and ``"pi"`` ``[K]``, how much the answer of each counts.
        """
        return {"theta": theta}

    def spent(self, state: S | None = None) -> Spent | None:
        """What noise of the method's own has cost the clients that were asked most so far, or, without a state, who is
        asked once; None where it adds none."""
        inner = getattr(state, "base", None)
        return next((found for base in self.bases() if (found := base.spent(inner)) is not None), None)

    def for_inputs(self) -> Method[S] | None:
        """The method as it admits clients that have no labels; None where it cannot.

        One model for all is theirs whatever they hold.
        """
        trains = type(self).personalise is not Method.personalise
        return None if self.clustered or trains else self

    def hyper(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def only_sums(self) -> bool:
        """Whether the server needs nothing but sums of what clients send, with these settings, from start to end."""
        return self.sums and all(base.only_sums() for base in self.bases())

    def reads_again(self) -> bool:
        """Whether clients read samples more often than is accounted for by epochs, with these settings."""
        return self.rereads or any(base.reads_again() for base in self.bases())

    def bases(self) -> list[Method[Any]]:
        """The methods that this one wraps."""
        return [value for value in self.hyper().values() if isinstance(value, Method)]


def exchanged(method: Method[Any]) -> dict[str, Declaration]:
    """What clients reply and keep in every procedure that the method runs, its bases' included."""
    found: dict[str, Declaration] = {}
    for part in (type(method), *method.runs):
        found |= part.declared()
    for base in method.bases():
        found |= exchanged(base)
    return found


def check_targets(method: Method[Any], *, regression: bool) -> None:
    """Raises where a method, or one that it wraps, needs classes and there are none."""
    if regression and method.needs_classes:
        raise ValueError(
            f"name={method.name!r} should be a method that needs no classes where targets are numbers: "
            f"{method.name} {method.needs_classes}"
        )
    for base in method.bases():
        check_targets(base, regression=regression)


class NotDefined(RuntimeError):
    """The method has no meaning for what was asked."""


@dataclass(frozen=True)
class Clusters(State):
    """K centres and each client's cluster: the state of every K-centre method."""

    centers: Tree  # stack [K]
    assign: Tensor  # [N] int64

    @property
    def k(self) -> int:
        return rows(self.centers)


@dataclass(frozen=True)
class Single(State):
    """One model for everybody."""

    theta: Tree


def serve_clusters(state: Clusters, ids: Tensor, *, personal: bool = False) -> Served:
    return Served(state.centers, state.assign[ids], personal)


def serve_single(theta: Tree, ids: Tensor, *, personal: bool = False) -> Served:
    models = {name: t.unsqueeze(0) for name, t in theta.items()}
    return Served(models, torch.zeros(len(ids), dtype=torch.int64), personal)


def admitted(models: Tree, cohort: Cohort, got: Replies, s: Tensor) -> Served:
    """Newcomers and the clusters they were given; who did not answer waits in cluster 0."""
    index = torch.zeros(len(cohort), dtype=torch.int64)
    place = {int(i): j for j, i in enumerate(cohort.ids)}
    index[[place[int(i)] for i in got.ids]] = s
    return Served(models, index)


def log_clusters(cohort: Cohort, before: Tensor, after: Tensor, k: int) -> None:
    """The diagnostics every clustered method writes: clusters alive and the share of clients that moved."""
    cohort.log(clusters_alive=after.unique().numel(), moved=(before != after).float().mean().item(), k=k)


def log_margin(cohort: Cohort, scores: Tensor) -> None:
    """How clear the choice was: the mean gap between best and second-best score (lower is better), over
    the best, and how many clients had a tie (the lowest index wins it)."""
    if scores.shape[1] < 2:
        return
    best = scores.sort(dim=1).values[:, :2]
    gap = best[:, 1] - best[:, 0]
    cohort.log(margin=(gap / best[:, 0].abs().clamp(min=1e-12)).mean().item(), ties=(gap == 0).sum().item())
