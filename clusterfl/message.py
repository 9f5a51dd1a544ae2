"""What crosses between server and clients: procedures, and what each field of their replies *is*.

A client procedure declares its fields where it stands:

>>> @on_client(theta=Model(of="centers", row="s"), s=Cluster(of="centers"), n=Weight())
... def choose_and_train(self, me, centers): ...

Guard, clipping, privacy, attacks, traffic and "what leaves a client" read this declaration; nothing guesses by a
field's name, and a field that is not declared is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from torch import Tensor

from clusterfl.tree import Tree

Payload = Tensor | Tree
Fields = dict[str, Payload]
Procedure = Callable[..., Mapping[str, Payload]]
F = TypeVar("F", bound=Callable[..., Any])


# -- what a field is ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What a field of a reply is; ``words`` say it to a user."""

    words: ClassVar[str] = ""

    def fault(self, value: Payload, sent: Fields) -> str:
        """What is wrong with the shape or type of one client's value, or ''; ``sent`` is what this client was sent."""
        return ""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Model(Kind):
    """A model or some of its tensors, and the sent one that it began from.

    ``of`` names the argument that the client was sent. Where that is a stack of models, ``row`` is the row that the
    model began from: a number, or the name of the reply's own field that says which.
    """

    of: str
    row: str | int | None = None
    words: ClassVar[str] = "a trained model"

    def fault(self, value: Payload, sent: Fields) -> str:
        if isinstance(value, Tensor):
            return "should be a tree of tensors"
        start = sent.get(self.of)
        if not isinstance(start, dict):
            return f"began from {self.of!r}, which was not sent as a model"
        for name, t in value.items():
            if name not in start:
                return f"holds {name!r}, which {self.of!r} does not"
            shape = start[name].shape if self.row is None else start[name].shape[1:]
            if t.shape != shape or t.dtype != start[name].dtype:
                return f"has {name!r} as {_described(t)}, which was sent as {start[name].dtype} {list(shape)}"
        return ""


@dataclass(frozen=True)
class Gradient(Kind):
    """A gradient: how far the client would move a model, as it stands."""

    words: ClassVar[str] = "a gradient"

    def fault(self, value: Payload, sent: Fields) -> str:
        return "should be a tree of tensors" if isinstance(value, Tensor) else ""


@dataclass(frozen=True)
class Weight(Kind):
    """How much the client counts in a mean, usually its number of samples: above 0 and no more than anybody holds."""

    words: ClassVar[str] = "its number of samples"

    def fault(self, value: Payload, sent: Fields) -> str:
        return _one_number(value, whole=False)


@dataclass(frozen=True)
class Cluster(Kind):
    """The cluster that the client chose: a row of the stack (or of the scores) that it was sent as ``of``."""

    of: str
    words: ClassVar[str] = "its cluster id"

    def fault(self, value: Payload, sent: Fields) -> str:
        return _one_number(value, whole=True)


@dataclass(frozen=True)
class Loss(Kind):
    """Losses of models on the client's data."""

    words: ClassVar[str] = "losses of models on its data"

    def fault(self, value: Payload, sent: Fields) -> str:
        return _floats(value)


@dataclass(frozen=True)
class Labels(Kind):
    """Label information. ``bound``: the largest Euclidean length that it can have; shares of labels have 1."""

    what: str = "the shares of its labels"
    bound: float | None = 1.0

    def fault(self, value: Payload, sent: Fields) -> str:
        return "" if self.bound is None else _floats(value)

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Statistic(Kind):
    """A statistic of the client's data, in words. ``bound``: the largest Euclidean length that it can have, if any."""

    what: str
    bound: float | None = None

    def fault(self, value: Payload, sent: Fields) -> str:
        return _floats(value)

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Kept(Kind):
    """What stays on the client: what it keeps for its next procedures, or a model that only it uses."""

    what: str = "a model of its own"

    def __str__(self) -> str:
        return self.what


def _described(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)}"


def _one_number(value: Payload, *, whole: bool) -> str:
    kind = "whole" if whole else "real"
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point() is not whole:
        return ""
    return f"should be one {kind} number" + (f", not {_described(value)}" if isinstance(value, Tensor) else "")


def _floats(value: Payload) -> str:
    tensors = [value] if isinstance(value, Tensor) else list(value.values())
    wrong = next((t for t in tensors if not t.is_floating_point()), None)
    return "" if wrong is None else f"should be real numbers, not {_described(wrong)}"


# -- procedures --------------------------------------------------------------------------------------------


Declaration = Mapping[str, Kind]


@overload
def on_client(procedure: F, /) -> F: ...
@overload
def on_client(**fields: Kind) -> Callable[[F], F]: ...
def on_client(procedure: Any = None, /, **fields: Kind) -> Any:
    """Marks a method of a :class:`Procedures` class as one that runs on a client, and says what its reply holds.

    It may use only ``me``, what the server sent and the method's hyper-parameters; it returns a dict of tensors and
    trees, each declared here by its kind (one that some settings leave out is declared too). To run stacked it must
    not branch on the values of tensors. Without any field, nothing leaves the client.
    """

    def mark(procedure: F) -> F:
        _check_declaration(procedure, fields)
        procedure.__on_client__ = dict(fields)  # type: ignore[attr-defined]
        return procedure

    return mark if procedure is None else mark(procedure)


def on_server(procedure: F) -> F:
    """Marks server work over the rows of a stack, which ``cohort.map`` spreads over an engine's cores.

    It has a client procedure's signature, but its ``me`` holds no data: only the task and a key.
    """
    procedure.__on_server__ = True  # type: ignore[attr-defined]
    return procedure


def _check_declaration(procedure: Callable[..., Any], fields: Declaration) -> None:
    """What a declaration refers to is there."""
    parameters = inspect.signature(procedure).parameters
    for name, kind in fields.items():
        where = f"{procedure.__qualname__}: {name}={kind!r}"
        of = kind.of if isinstance(kind, Model | Cluster) else None
        if of is not None and of not in parameters:
            raise TypeError(f"{where} should name one of the procedure's arguments, {', '.join(list(parameters)[2:])}")
        if isinstance(kind, Model) and isinstance(kind.row, str) and not isinstance(fields.get(kind.row), Cluster):
            raise TypeError(f"{where} should name a row by a field that is declared as Cluster")


def declaration(procedures: object, name: str) -> Declaration:
    """What the client procedure ``name`` of an object says about its fields."""
    found: Declaration = getattr(getattr(procedures, name), "__on_client__", {})
    return found
