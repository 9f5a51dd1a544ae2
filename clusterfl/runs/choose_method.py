"""Which method should I use? The decision table of docs/which-method.md as a function, with its reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import torch

from clusterfl.data.population import Population
from clusterfl.fields import at_least, one_of, option

Answer = Literal["yes", "no"]
Skew = Literal["signal", "nuisance"]
Newcomers = Literal["none", "labelled", "unlabelled"]
Settings = dict[str, str | int]

REASONS = {
    "fedavg": "one model for all is what is left",
    "fedavg-ft": "one model, and a few local steps make each client's its own",
    "ifca": "clients choose their group themselves, by the loss of K models on their own data",
    "kin": "groups are found before training, from class counts and mean features, without K; one model down a round",
    "cfl": "clients are cut apart where their updates disagree, without K; `clusterfl choose-k` may tell K for ifca",
    "mcfl": "a client picks its model by features, so a newcomer needs no labels",
    "md-icfl": "one model down; the server places clients by the distance of models, with 1 / K of ifca's download",
}


@dataclass(frozen=True)
class Situation:
    """What decides between methods. Every field is a question; its default is the answer of somebody unsure."""

    k: int | None = option(None, "how many groups are there, if that is known?")
    statistics: Answer = option("yes", "may a client send label counts and mean features of its classes, once?")
    individual: Answer = option("yes", "may the server see single clients' updates (no: secure aggregation)?")
    bytes: Answer = option("yes", "does it matter how many models a client downloads in a round?")
    skew: Skew = option("nuisance", "clients hold different shares of labels: is that a reason to group them?")
    newcomers: Newcomers = option("labelled", "will clients join later, with or without labels?")
    personal: Answer = option("no", "should each client have a model of its own on top?")

    def __post_init__(self) -> None:
        at_least(1, self, "k")
        one_of(Answer, self, "statistics", "individual", "bytes", "personal")
        one_of(Skew, self, "skew")
        one_of(Newcomers, self, "newcomers")


@dataclass(frozen=True)
class Recommendation:
    """A method, its settings, and what to compare it with."""

    method: str
    settings: Settings

    @property
    def reason(self) -> str:
        return REASONS[self.method]

    @property
    def beside(self) -> tuple[str, ...]:
        return tuple(name for name in ("local", "fedavg", "ifca") if name != self.method)

    def toml(self) -> str:
        """The ``[method]`` table to start from."""
        values = {"name": self.method, **self.settings}
        return "\n".join(["[method]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])


def recommend(asked: Situation) -> Recommendation:
    """The first row of the table that fits."""
    k: Settings = {} if asked.k is None else {"k": asked.k}
    blind = asked.individual == "no" and asked.k is None  # nobody can look for groups
    if asked.k == 1 or blind:
        return Recommendation("fedavg-ft" if asked.personal == "yes" else "fedavg", {})
    if asked.individual == "no":
        return Recommendation("ifca", k)
    if asked.statistics == "yes":
        by: Settings = {"by": "concept+labels"} if asked.skew == "signal" else {}
        own: Settings = {"personal": "head"} if asked.personal == "yes" else {}
        return Recommendation("kin", {**by, **own})
    if asked.personal == "yes":
        return Recommendation("fedavg-ft", {})
    if asked.newcomers == "unlabelled":
        return Recommendation("mcfl", {})
    if asked.k is None:
        return Recommendation("cfl", {})
    return Recommendation("ifca" if asked.bytes == "no" else "md-icfl", k)


def looked_at(population: Population, limit: int = 200) -> list[str]:
    """What the clients themselves tell, in words."""
    sizes = population.train.sizes[: population.clients].double()
    lines = [f"{population.clients} clients with {sizes.mean():.0f} samples on average, {sizes.min():.0f} at least"]
    held = [population.train.of(i)[1].unique().numel() for i in range(min(population.clients, limit))]
    some = f" (the first {limit} clients)" if population.clients > limit else ""
    lines.append(
        f"clients hold {torch.tensor(held).double().mean():.1f} of {population.classes} classes on average{some}"
    )
    return lines
