"""What a reply is: declarations, and the errors that name procedure and field where a reply is something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.call import Call, UndeclaredField, check_reply
from clusterfl.client import Client
from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.errors import ClientError
from clusterfl.evaluate.served import personal_models
from clusterfl.message import (
    Cluster,
    Gradient,
    Kept,
    Kind,
    Labels,
    Loss,
    Model,
    Payload,
    Statistic,
    Weight,
    declaration,
    on_client,
)
from clusterfl.method import Procedures
from clusterfl.methods import FedPer
from clusterfl.parts.local import SGD
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import Tree

IDS = torch.arange(CLIENTS)

# -- where a procedure stands ------------------------------------------------------------------------------


def test_a_model_that_began_from_no_argument_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Lost\.train: theta=Model\(of='x', row=None\) should name .*, w"):

        class Lost(Procedures):
            @on_client(theta=Model(of="x"))
            def train(self, me: Client, w: Tree) -> dict[str, Payload]:
                return {"theta": w}


def test_a_cluster_of_no_argument_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Lost\.choose: s=Cluster\(of='centers'\) should name .*, models"):

        class Lost(Procedures):
            @on_client(s=Cluster(of="centers"))
            def choose(self, me: Client, models: Tree) -> dict[str, Payload]:
                return {"s": torch.tensor(0)}


@pytest.mark.parametrize("other", [{}, {"s": Weight()}], ids=["not declared", "not a cluster"])
def test_a_row_is_named_by_a_cluster(other: dict[str, Kind]) -> None:
    with pytest.raises(TypeError, match=r"Lost\.train: theta=.* should name a row by a field .* declared as Cluster"):

        class Lost(Procedures):
            @on_client(theta=Model(of="centers", row="s"), **other)
            def train(self, me: Client, centers: Tree) -> dict[str, Payload]:
                return {"theta": centers}


def test_a_declaration_is_read_from_its_procedure() -> None:
    assert declaration(Odd(), "reply").keys() == {"model", "mass", "home", "loss", "shares", "mine", "grad", "mean"}
    assert declaration(Odd(), "nothing") == {}
    assert Odd.declared().keys() == {"Odd.reply", "Odd.nothing", "Odd.keep"}
    call = Call(Odd(), "reply", IDS, {}, {}, keys.key(0), 0)
    assert call.declared["mass"] == Weight() and call.label == "Odd.reply"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Model(of="w"), "a trained model"),
        (Gradient(), "a gradient"),
        (Weight(), "its number of samples"),
        (Cluster(of="w"), "its cluster id"),
        (Loss(), "losses of models on its data"),
        (Labels(), "the shares of its labels"),
        (Labels("its label counts", bound=None), "its label counts"),
        (Statistic("the mean of its images"), "the mean of its images"),
        (Kept(), "a model of its own"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Kind) else "",
)
def test_every_kind_says_in_words_what_leaves_a_client(kind: Kind, words: str) -> None:
    assert str(kind) == words


# -- what a client sends -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd(Procedures):
    """Replies as they were declared, unless ``how`` says otherwise."""

    how: str = ""

    @on_client(
        model=Model(of="w"),
        mass=Weight(),
        home=Cluster(of="nets"),
        loss=Loss(),
        shares=Labels(),
        mean=Statistic("the mean of something", bound=2.0),
        grad=Gradient(),
        mine=Kept(),
    )
    def reply(self, me: Client, w: Tree, nets: Tree) -> dict[str, Payload]:
        sound: dict[str, Payload] = {
            "model": w,
            "mass": me.size,
            "home": torch.tensor(1),
            "loss": torch.zeros(2),
            "shares": torch.zeros(3),
            "mean": {"a": torch.zeros(2)},
            "grad": w,
        }
        return {**sound, **WRONG[self.how](me, w)} if self.how else sound

    @on_client
    def nothing(self, me: Client) -> dict[str, Payload]:
        return {}

    @on_client(mine=Kept("its own model"))
    def keep(self, me: Client, w: Tree) -> dict[str, Payload]:
        me.keep_tree("mine", w)
        if self.how == "another name":
            me.keep(theirs=me.size)
        return {}


def weight_cut(w: Tree) -> Tree:
    return {**w, "0.weight": w["0.weight"][:, :2]}


WRONG: dict[str, Any] = {
    "undeclared": lambda me, w: {"surprise": me.size},
    "a whole number for a weight": lambda me, w: {"mass": torch.tensor(3)},
    "several weights": lambda me, w: {"mass": torch.ones(3)},
    "a tree for a weight": lambda me, w: {"mass": w},
    "a real number for a cluster": lambda me, w: {"home": torch.tensor(1.0)},
    "several clusters": lambda me, w: {"home": torch.arange(2)},
    "another shape of a model": lambda me, w: {"model": weight_cut(w)},
    "another dtype of a model": lambda me, w: {"model": {**w, "0.weight": w["0.weight"].double()}},
    "a tensor that was not sent": lambda me, w: {"model": {**w, "9.weight": w["0.weight"]}},
    "a tensor for a model": lambda me, w: {"model": me.size},
    "a tensor for a gradient": lambda me, w: {"grad": me.size},
    "whole numbers for losses": lambda me, w: {"loss": torch.arange(2)},
    "whole numbers for label shares": lambda me, w: {"shares": torch.arange(3)},
    "whole numbers in a tree": lambda me, w: {"mean": {"a": torch.zeros(2), "b": torch.arange(3)}},
    "what stays on the client": lambda me, w: {"mine": w},
}
SAID = {
    "undeclared": r"its reply holds 'surprise', which should be declared, as in @on_client\(surprise=",
    "a whole number for a weight": r"'mass' was declared as Weight\(\) and should be one real number, not torch\.int64",
    "several weights": r"'mass' was declared as Weight\(\) and should be one real number",
    "a tree for a weight": r"'mass' was declared as Weight\(\) and should be one real number",
    "a real number for a cluster": r"'home' was declared as Cluster\(of='nets'\) and should be one whole number",
    "several clusters": r"'home' was declared as Cluster\(of='nets'\) and should be one whole number",
    "another shape of a model": r"'model' was declared as Model.* has '0\.weight' as torch\.float32 \[8, 2\], which",
    "another dtype of a model": r"'model' was declared as Model.* has '0\.weight' as torch\.float64 \[8, 6\]",
    "a tensor that was not sent": r"'model' was declared as Model.* holds '9\.weight', which 'w' does not",
    "a tensor for a model": r"'model' was declared as Model.* should be a tree of tensors",
    "a tensor for a gradient": r"'grad' was declared as Gradient\(\) and should be a tree of tensors",
    "whole numbers for losses": r"'loss' was declared as Loss\(\) and should be real numbers, not torch\.int64",
    "whole numbers for label shares": r"'shares' was declared as Labels.* should be real numbers, not torch\.int64",
    "whole numbers in a tree": r"'mean' was declared as Statistic.* should be real numbers, not torch\.int64",
    "what stays on the client": r"its reply holds 'mine', which was declared as staying on the client",
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, BaseEngine]]:
    task, population = small_task(), small_population()
    with Pool(task, population, workers=2) as pool:
        made = {make.__name__.lower(): make(task, population) for make in (Serial, Stacked, Wire)}
        yield {**made, "pool": pool}


ENGINES = ("serial", "stacked", "wire", "pool")


def sent(engine: BaseEngine) -> dict[str, Payload]:
    return {"w": engine.task.init(keys.key(0)), "nets": engine.task.init_stack(keys.key(1), 2)}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("how", WRONG)
def test_a_reply_that_is_not_as_declared_names_procedure_client_and_field(
    how: str, name: str, engines: dict[str, BaseEngine]
) -> None:
    engine = engines[name]
    with pytest.raises(ClientError, match=rf"^Odd\.reply failed on client \d+: UndeclaredField: {SAID[how]}"):
        engine.cohort(IDS, keys.key(0)).run(Odd(how).reply, sent(engine))


@pytest.mark.parametrize("name", ENGINES)
def test_a_reply_that_is_as_declared_comes_back(name: str, engines: dict[str, BaseEngine]) -> None:
    engine = engines[name]
    got = engine.cohort(IDS, keys.key(0)).run(Odd().reply, sent(engine))
    assert got.fields.keys() == {"model", "mass", "home", "loss", "shares", "mean", "grad"}


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_kept_is_declared_too(name: str, engines: dict[str, BaseEngine]) -> None:
    engine = engines[name]
    theta = {"w": sent(engine)["w"]}
    engine.set_states({})
    with pytest.raises(ClientError, match=r"^Odd\.keep failed on client \d+: UndeclaredField: it keeps 'theirs'"):
        engine.cohort(IDS, keys.key(0)).run(Odd("another name").keep, theta)
    assert engine.states() == {}, "nothing of it was kept"
    engine.cohort(IDS, keys.key(0)).run(Odd().keep, theta)
    assert {n.partition("/")[0] for n in engine.states()[3]} == {"mine"}


@pytest.mark.parametrize("name", ENGINES)
def test_a_personal_model_is_a_reply_only_to_a_measurement(name: str, engines: dict[str, BaseEngine]) -> None:
    engine, method = engines[name], FedPer(local=SGD(lr=0.1, batch=10))
    engine.set_states({})
    served = method.serve(play(method, engine, rounds=1), IDS)
    theta: Any = {n: t[served.index] for n, t in served.models.items()}
    with pytest.raises(ClientError, match=r"FedPer\.personalise .* 'theta', which was declared as staying on the"):
        engine.cohort(IDS, keys.key(0)).run(method.personalise, served.shared, theta=theta)
    found = list(personal_models(engine, method, served, IDS, keys.key(0)))
    assert torch.cat([ids for ids, _ in found]).tolist() == IDS.tolist()


def test_a_row_of_a_stack_has_a_models_shape() -> None:
    """A number names a row as a field does."""
    stack = {"a": torch.zeros(3, 2), "b": torch.zeros(3)}
    one = {"a": torch.zeros(2), "b": torch.zeros(())}
    assert Model(of="w", row=0).fault(one, {"w": stack}) == ""
    assert Model(of="w").fault(stack, {"w": stack}) == "", "without a row the whole of it was trained"
    assert "has 'a'" in Model(of="w", row=0).fault(stack, {"w": stack})
    assert Model(of="w").fault({"a": stack["a"]}, {"w": stack}) == "", "some of its tensors will do"
    assert "was not sent as a model" in Model(of="w").fault(one, {"w": torch.zeros(2)})


def test_checks_of_one_reply() -> None:
    call = Call(Odd(), "reply", IDS, {}, {}, keys.key(0), 0)
    with pytest.raises(UndeclaredField, match="'mass'"):
        check_reply(call, {"mass": torch.tensor(1)}, {}, {})
    check_reply(call, {"mass": torch.tensor(1.0)}, {}, {})
    check_reply(call, {}, {}, {})  # a field that some settings leave out
