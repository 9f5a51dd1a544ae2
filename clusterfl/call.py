"""One exchange with clients: the call, the replies as they come in, and how their fields are cut and joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.message import Declaration, Fields, Kept, Payload, declaration
from clusterfl.tree import Tree, row, take

if TYPE_CHECKING:
    from clusterfl.method import Procedures


@dataclass(frozen=True)
class Call:
    """One exchange with clients, complete: an engine needs nothing else to carry it out."""

    method: Procedures
    name: str
    ids: Tensor
    shared: Fields
    each: Fields  # stacked and aligned with ids
    key: Key
    round: int
    server: bool = False  # a row of server work (no client behind it) rather than a client
    measure: bool = False  # evaluation: nothing is kept, nothing is metered, nothing leaves a device
    test_of: Tensor | None = None  # evaluation on the test data of these clients, in place of the client's own

    @property
    def label(self) -> str:
        return f"{type(self.method).__name__}.{self.name}"

    @property
    def declared(self) -> Declaration:
        return declaration(self.method, self.name)

    def only(self, positions: Tensor) -> Call:
        """The same call for some of its clients."""
        each = {n: take_rows(v, positions) for n, v in self.each.items()}
        test_of = None if self.test_of is None else self.test_of[positions]
        return replace(self, ids=self.ids[positions], each=each, test_of=test_of)

    def client_key(self, client: int) -> Key:
        return keys.fold_in(self.key, client)


def check_reply(call: Call, reply: Fields, kept: Tree, sent: Fields) -> None:
    """On the client, before anything leaves it: the reply and what is kept are as they were declared."""
    for name, value in reply.items():
        kind = call.declared.get(name)
        if kind is None:
            raise UndeclaredField(
                f"its reply holds {name!r}, which should be declared, as in @on_client({name}=Model(of=...))"
            )
        if isinstance(kind, Kept) and not call.measure:
            raise UndeclaredField(f"its reply holds {name!r}, which was declared as staying on the client")
        fault = kind.fault(value, sent)
        if fault:
            raise UndeclaredField(f"{name!r} was declared as {kind!r} and {fault}")
    for name in {n.partition("/")[0] for n in kept}:
        if not isinstance(call.declared.get(name), Kept):
            raise UndeclaredField(f"it keeps {name!r}, which should be declared, as in @on_client({name}=Kept())")


class UndeclaredField(TypeError):
    """A client procedure replied or kept something other than it had declared."""


class Chunk(NamedTuple):
    """Replies of some clients of a call: ``positions`` are their places in ``call.ids``."""

    positions: Tensor
    fields: Fields


class Reducer(Protocol):
    """Takes replies chunk by chunk, in client order, so that no one ever holds them all."""

    consumes: tuple[str, ...]

    def add(self, ids: Tensor, fields: Fields) -> None: ...


def take_rows(value: Payload, positions: Tensor | slice) -> Payload:
    """Rows of a field of replies."""
    if isinstance(value, Tensor):
        return value[positions]
    return {n: t[positions] for n, t in value.items()} if isinstance(positions, slice) else take(value, positions)


def take_row(value: Payload, i: int) -> Payload:
    """One client's part of a field."""
    return value[i] if isinstance(value, Tensor) else row(value, i)


def length(value: Payload) -> int:
    """How many rows a field has."""
    return value.shape[0] if isinstance(value, Tensor) else next(iter(value.values())).shape[0]


def tensors_of(fields: Fields) -> Iterator[tuple[str, str, Tensor]]:
    """(field, name within its tree or '', tensor) of all tensors."""
    for field, value in fields.items():
        if isinstance(value, Tensor):
            yield field, "", value
        else:
            yield from ((field, name, t) for name, t in value.items())


def join(parts: Iterable[Fields], most: int) -> Fields:
    """Chunks of replies of ``most`` clients at most, as one.

    Each goes to its place as it comes: were they kept until the last, all replies would be held twice.
    """
    out: Fields = {}
    held: dict[str, Tensor] = {}
    rows = 0
    for j, part in enumerate(parts):
        if j == 0:
            out = {n: _room(v, most) for n, v in part.items()}
            held = _by_place(out)
        found = _by_place(part)
        for place in held.keys() | found.keys():
            if _kind(held.get(place)) != _kind(found.get(place)):
                raise ValueError(f"{place}: all replies to a call should have it, in one shape and type")
        high = rows + max(map(len, found.values()), default=0)
        for place, t in found.items():
            held[place][rows:high] = t
        rows = high
    return {n: take_rows(v, slice(rows)) for n, v in out.items()}


def _room(value: Payload, m: int) -> Payload:
    """As ``value``, for so many rows."""
    if isinstance(value, Tensor):
        return value.new_empty(m, *value.shape[1:])
    return {n: t.new_empty(m, *t.shape[1:]) for n, t in value.items()}


def _by_place(fields: Fields) -> dict[str, Tensor]:
    return {f"{field}.{name}" if name else field: t for field, name, t in tensors_of(fields)}


def _kind(t: Tensor | None) -> tuple[torch.Size, torch.dtype] | None:
    return None if t is None else (t.shape[1:], t.dtype)
