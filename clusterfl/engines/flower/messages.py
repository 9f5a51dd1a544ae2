"""What crosses between the server and its nodes: tensors and JSON (codec), each message in one piece.

Every request has a token, which its answer repeats; a node answers with what was asked for or with a
:class:`Failure` in words. Nothing is decoded that is larger than such a message can be.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from clusterfl.engines import codec
from clusterfl.message import Fields
from clusterfl.method import Procedures, State

ROOM = 1 << 24  # bytes that any answer may have; one that is longer must be in proportion to what was asked


@dataclass(frozen=True)
class Problem(State):
    """What every node has to agree on before it can compute: the model, the classes by name, what is learnt."""

    model: str
    params: dict[str, Any]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]  # none: targets are numbers
    outputs: int
    task: dict[str, Any]  # the [task] table
    privacy: dict[str, Any]  # the [privacy] table: clients clip and blur before anything leaves them


@dataclass(frozen=True)
class Reading(State):
    """How a node reads its own files: tables by the names of their columns, as all nodes have agreed on them."""

    normalize: str
    test_fraction: float
    numbers: bool = False  # targets are numbers, not classes
    client: str = "client"  # the column that says whose a row is, if there is one
    label: str = "label"
    features: tuple[str, ...] | None = None  # columns, in order; None: all others
    categorical: tuple[str, ...] = ()  # those of them that hold words
    words: tuple[tuple[str, ...], ...] = ()  # that each of these may hold; none: not agreed yet, those that occur


@dataclass(frozen=True)
class Hello(State):
    """Asks a node what it holds."""

    token: int
    name: str
    reading: Reading


@dataclass(frozen=True)
class Introduction(State):
    """What a node says about its data: sizes, the shape of a sample, its classes and columns by name; or why it takes
    no part."""

    token: int
    train: int
    test: int
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    declined: str = ""
    target_shape: tuple[int, ...] = ()  # of a target that is numbers
    columns: tuple[str, ...] = ()  # of features, where they are a table's
    words: tuple[tuple[str, ...], ...] = ()  # that occur in each column of words


@dataclass(frozen=True)
class Place(State):
    """Where in a run a request stands, so that what a node keeps can be taken back to any checkpoint."""

    run: str
    attempts: dict[str, int]  # that the run is made of, a resume is another one; the round that each began with
    epoch: int  # 0: the start, t: round t
    oldest: int  # the earliest round to which the server may still go back
    void: tuple[int, ...] = ()  # requests to the node since its last reply that do not count: it keeps nothing of them

    @property
    def attempt(self) -> str:
        """The one under way."""
        return list(self.attempts)[-1]

    def holds(self, attempt: str, epoch: int) -> bool:
        """Whether what an attempt did in a round is part of the run: a later one may have done it again."""
        begun = [name for name, first in self.attempts.items() if first <= epoch]
        return epoch <= self.epoch and begun[-1:] == [attempt]


@dataclass(frozen=True)
class Request(State):
    """A procedure for one node to run."""

    token: int
    name: str  # of the node
    client: int  # its number, which its randomness is drawn from
    place: Place
    problem: Problem
    reading: Reading
    method: Procedures
    procedure: str
    shared: Fields
    each: Fields
    key: Tensor
    round: int
    measure: bool


@dataclass(frozen=True)
class Reply(State):
    """What the procedure returned."""

    token: int
    fields: Fields


@dataclass(frozen=True)
class Failure(State):
    """Why there is no reply, in one sentence."""

    token: int
    reason: str


@dataclass(frozen=True)
class Delivery(State):
    """A cluster's model for a node's own use, in place of the version that it serves."""

    request: Request  # the method's ``personalise``, by which the node makes the model its own
    cluster: int
    version: int
    trial: bool  # only score it: the version in service stays

    @property
    def token(self) -> int:
        return self.request.token

    @property
    def name(self) -> str:
        return self.request.name


@dataclass(frozen=True)
class Receipt(State):
    """What a delivered model scores on the node's own held-out data, beside the one in service (-1: there is none)."""

    token: int
    samples: int
    score: float  # summed over samples: right answers or, of numbers, the loss with its sign turned
    serving: int  # the version in service
    score_now: float  # of that one


Answer = Reply | Failure | Introduction | Receipt


def bound_of(request: bytes) -> int:
    """The most bytes that an answer to a request may have."""
    return ROOM + 4 * len(request)


def read_answer(message: bytes, token: int, largest: int) -> Answer:
    """The answer in a message; ValueError, in one sentence, for anything else."""
    if len(message) > largest:
        raise ValueError(f"its {len(message):,} bytes should be at most {largest:,}")
    answer = codec.unpack(message)
    if not isinstance(answer, Reply | Failure | Introduction | Receipt):
        raise ValueError("it should be a reply")
    if answer.token != token:
        raise ValueError("it answers another request")
    if isinstance(answer, Reply) and not codec.plain(answer.fields):
        raise ValueError("its fields should be tensors and trees of tensors")
    if not isinstance(answer, Reply):
        hints = get_type_hints(type(answer))
        for field in fields(answer):  # anybody may have sent it
            if not _fits(getattr(answer, field.name), hints[field.name]):
                raise ValueError(f"its {field.name} should be of another type")
    return answer


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    return type(value) is hint or (hint is float and type(value) is int)
