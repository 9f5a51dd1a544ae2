"""A client as its procedures see it, and the cohort through which a server reaches clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.errors import NoReplies
from clusterfl.keys import Key
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, nbytes, take

if TYPE_CHECKING:
    from clusterfl.method import Procedures

Payload = Tensor | Tree
Fields = dict[str, Payload]
Procedure = Callable[..., Mapping[str, Payload]]
F = TypeVar("F", bound=Callable[..., Any])


def on_client(procedure: F) -> F:
    """Marks a method of a :class:`Procedures` class as one that runs on a client.

    It may use only ``me``, what the server sent and the method's hyper-parameters; it returns a dict of
    tensors and trees. To run stacked it must not branch on the values of tensors.
    """
    procedure.__on_client__ = True  # type: ignore[attr-defined]
    return procedure


def on_server(procedure: F) -> F:
    """Marks server work over the rows of a stack, which ``cohort.map`` spreads over an engine's cores.

    It has a client procedure's signature, but its ``me`` holds no data: only the task and a key.
    """
    procedure.__on_server__ = True  # type: ignore[attr-defined]
    return procedure


class Batch(NamedTuple):
    """A mini-batch. ``w`` is None where no sample is padding, else 1 for samples and 0 for padding."""

    x: Tensor
    y: Tensor
    w: Tensor | None
    base: Key
    at: tuple[int | Tensor, ...] = ()
    hollow: bool = True  # it may be nothing but padding

    @property
    def key(self) -> Key:
        """The batch's own randomness (dropout); folded when it is asked for, for few models do."""
        return keys.fold_in(self.base, *self.at)

    @property
    def active(self) -> Tensor | None:
        """Whether the batch holds any sample at all (None: it does)."""
        return None if self.w is None or not self.hollow else self.w[0] > 0


def gather(pool: Tensor, rows: Tensor) -> Tensor:
    """``pool[rows]``, row by row in one copy each, stacked or not: two to five times as fast as indexing."""
    last = pool.dim() == 4 and not pool.is_contiguous()  # channels last: the rows lie in memory as [H, W, C]
    table = pool.movedim(1, -1) if last else pool
    got = torch.embedding(table.reshape(len(pool), -1), rows).reshape(*rows.shape, *table.shape[1:])
    return got.movedim(-1, -3) if last else got


@dataclass
class Shard:
    """A client's samples: row numbers into a pool, which other clients may share."""

    pool_x: Tensor
    pool_y: Tensor
    rows: Tensor  # [length] int64, padded at the end in a ragged chunk
    n: int | Tensor  # how many of the rows are samples
    ragged: bool = False

    @property
    def length(self) -> int:
        return self.rows.shape[0]

    @property
    def x(self) -> Tensor:
        return gather(self.pool_x, self.rows)

    @property
    def y(self) -> Tensor:
        return self.pool_y[self.rows]

    @property
    def w(self) -> Tensor | None:
        """1 for samples, 0 for padding; None where nothing is padded."""
        return (torch.arange(self.length, device=self.rows.device) < self.n).float() if self.ragged else None

    def pieces(self, size: int = 500) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(x, y, w) in order, in pieces: batches over about a thousand images cost more per image."""
        w = self.w
        for at in range(0, self.length, size):
            rows = self.rows[at : at + size]
            yield gather(self.pool_x, rows), self.pool_y[rows], None if w is None else w[at : at + size]


@dataclass
class Client:
    """ "me": all that a client procedure may see.

    In a stacked engine every tensor here carries the client axis invisibly, ``n`` is a tensor, and the
    shards are padded to the longest of their chunk; ``train.w`` then tells samples from padding.
    """

    task: Task
    train: Shard
    test: Shard
    key: Key
    round: int = 0
    state: Tree = field(default_factory=dict)
    stacked: bool = False
    least: int = 0  # the smallest n of the chunk
    kept: Tree = field(default_factory=dict)

    @property
    def n(self) -> int | Tensor:
        """How many training samples this client has."""
        return self.train.n

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; server work knows it too, though it holds no sample."""
        return tuple(self.train.pool_x.shape[1:])

    @property
    def size(self) -> Tensor:
        """``n`` as a float tensor, ready to be a weight in a reply."""
        return torch.as_tensor(self.n, dtype=torch.float32, device=self.key.device)

    def keep(self, **tensors: Tensor) -> None:
        """Stays on the client until its next procedure reads ``me.state``; never uploaded."""
        self.kept.update(tensors)

    def keep_tree(self, name: str, tree: Tree) -> None:
        """As :meth:`keep`, for a whole tree; :meth:`tree` gives it back."""
        self.kept.update({f"{name}/{n}": t for n, t in tree.items()})

    def tree(self, name: str) -> Tree | None:
        """The tree kept under this name, or None on a client that has kept none yet."""
        found = {n.removeprefix(f"{name}/"): t for n, t in self.state.items() if n.startswith(f"{name}/")}
        return found or None

    def batches(
        self, *, size: int, epochs: int | None = None, steps: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled mini-batches: whole ``epochs``, or ``steps`` batches in as many epochs as they need.

        Different ``stream`` numbers give independent orders.
        """
        if (epochs is None) == (steps is None):
            raise ValueError(f"epochs={epochs} and steps={steps}: exactly one should be given")
        key = keys.fold_in(self.key, "batches", stream)
        shard, device = self.train, self.key.device
        if shard.ragged and steps is not None:
            yield from self._ragged_steps(key, size, steps)
            return
        length = shard.length
        if not length:
            return
        per_epoch = -(-length // size)
        total = steps if steps is not None else (epochs or 0) * per_epoch
        rows = shard.rows
        for t in range(total):
            epoch, place = divmod(t, per_epoch)
            if place == 0:
                valid = shard.n if shard.ragged else None
                rows = shard.rows[keys.permutation(keys.fold_in(key, epoch), length, valid)]
            start, stop = place * size, min((place + 1) * size, length)
            w = (torch.arange(start, stop, device=device) < shard.n).float() if shard.ragged else None
            at = rows[start:stop]
            yield Batch(gather(shard.pool_x, at), shard.pool_y[at], w, key, (epoch, place))

    def _ragged_steps(self, key: Key, size: int, steps: int) -> Iterator[Batch]:
        """The same batches when clients of one chunk need different numbers of epochs for ``steps``."""
        shard, device = self.train, self.key.device
        length, n = shard.length, torch.as_tensor(shard.n, device=device)
        per_epoch = -(-n // size)
        most = -(-steps // max(-(-self.least // size), 1))
        orders = torch.stack([keys.permutation(keys.fold_in(key, e), length, n) for e in range(most)])
        within = torch.arange(size, device=device)
        for t in range(steps):
            epoch, place = t // per_epoch, t % per_epoch
            at = place * size + within
            order = orders.reshape(-1).gather(0, epoch * length + at.clamp(max=length - 1))
            rows = shard.rows.gather(0, order)
            w = (at < n).float()  # of a step that each client takes: never padding alone
            yield Batch(gather(shard.pool_x, rows), shard.pool_y[rows], w, key, (epoch, place), hollow=False)


@dataclass(frozen=True)
class Replies:
    """What came back: fields stacked ``[m, …]`` and aligned with ``ids``, which may be fewer than were asked."""

    ids: Tensor
    fields: Fields
    cohort: Cohort

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __len__(self) -> int:
        return self.ids.shape[0]

    def take(self, positions: Tensor) -> Replies:
        """The replies at these positions."""
        fields = {n: _take(v, positions) for n, v in self.fields.items()}
        ids = self.ids[positions]
        return Replies(ids, fields, self.cohort.only(ids))

    def join(self, other: Replies, *names: str) -> tuple[Any, ...]:
        """``(replies, *fields of other)`` for the clients that answered both times, in the same order."""
        where = {int(i): j for j, i in enumerate(other.ids)}
        both = [j for j, i in enumerate(self.ids.tolist()) if i in where]
        mine = self.take(torch.tensor(both, dtype=torch.int64))
        theirs = torch.tensor([where[i] for i in mine.ids.tolist()], dtype=torch.int64)
        return (mine, *(_take(other.fields[n], theirs) for n in names))


def _take(value: Payload, positions: Tensor) -> Payload:
    return value[positions] if isinstance(value, Tensor) else take(value, positions)


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
    measure: bool = False  # evaluation: nothing is kept, nothing is metered

    @property
    def label(self) -> str:
        return f"{type(self.method).__name__}.{self.name}"

    def only(self, positions: Tensor) -> Call:
        """The same call for some of its clients."""
        each = {n: _take(v, positions) for n, v in self.each.items()}
        return replace(self, ids=self.ids[positions], each=each)

    def client_key(self, client: int) -> Key:
        return keys.fold_in(self.key, client)


class Chunk(NamedTuple):
    """Replies of some clients of a call: ``positions`` are their places in ``call.ids``."""

    positions: Tensor
    fields: Fields


class Reducer(Protocol):
    """Takes replies chunk by chunk, in client order, so that no one ever holds them all."""

    consumes: tuple[str, ...]

    def add(self, ids: Tensor, fields: Fields) -> None: ...


@dataclass
class Traffic:
    """Bytes of payload, by procedure. Down: server to clients."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)

    def count(self, label: str, down: int, up: int) -> None:
        self.down[label] = self.down.get(label, 0) + down
        self.up[label] = self.up.get(label, 0) + up

    @property
    def total_down(self) -> int:
        return sum(self.down.values())

    @property
    def total_up(self) -> int:
        return sum(self.up.values())


class Engine(Protocol):
    """Carries out calls. Engines and the wrappers around them (drop-outs, attacks, guards) look alike."""

    task: Task
    traffic: Traffic

    def execute(self, call: Call) -> Iterator[Chunk]:
        """Runs a call on its clients; yields replies in chunks, clients in the order of ``call.ids``."""
        ...

    def able(self, ids: Tensor) -> Tensor:
        """The positions of those that can answer: a client without training data is never asked."""
        ...

    def cohort(self, ids: Tensor, key: Key, round: int = 0) -> Cohort: ...


class Cohort:
    """S_t, wherever its members live: the one way to reach client data."""

    def __init__(
        self,
        engine: Engine,
        ids: Tensor,
        key: Key,
        round: int = 0,
        *,
        _shared: dict[str, Any] | None = None,
    ) -> None:
        self.engine, self.ids, self.key, self.round = engine, ids, key, round
        # counters and log lines are common to a cohort and its parts: a round is one conversation
        self._common: dict[str, Any] = _shared if _shared is not None else {"calls": 0, "log": {}}

    @property
    def task(self) -> Task:
        return self.engine.task

    def __len__(self) -> int:
        return self.ids.shape[0]

    def only(self, ids: Tensor) -> Cohort:
        """A part of this cohort."""
        return Cohort(self.engine, ids, self.key, self.round, _shared=self._common)

    def at(self, round: int) -> Cohort:
        """The same cohort as in another round, whose number local rules may look at."""
        return Cohort(self.engine, self.ids, self.key, round, _shared=self._common)

    def run(
        self,
        procedure: Procedure,
        shared: Mapping[str, Payload] | None = None,
        /,
        *,
        into: Reducer | None = None,
        **each: Payload,
    ) -> Replies:
        """Runs a client procedure on every member.

        ``shared`` goes to all of them, a row of each keyword's stack to each. With ``into`` the fields
        that the reducer consumes are folded chunk by chunk and are not in the replies.
        """
        call = self._call(procedure, "on_client", self.ids, shared, each)
        able = self.engine.able(call.ids)
        if len(able) < len(call.ids):
            call = call.only(able)
        down = sum(nbytes(v) for v in call.shared.values())
        down_each = sum(nbytes(v) for v in call.each.values()) // max(len(call.ids), 1)
        answered: list[Tensor] = []
        parts: list[Fields] = []
        up = 0
        for chunk in self.engine.execute(call) if len(call.ids) else ():
            ids = call.ids[chunk.positions]
            up += sum(nbytes(v) for v in chunk.fields.values())
            answered.append(ids)
            if into is None:
                parts.append(chunk.fields)
            else:
                into.add(ids, chunk.fields)
                parts.append({n: v for n, v in chunk.fields.items() if n not in into.consumes})
        self.engine.traffic.count(call.label, (down + down_each) * len(call.ids), up)
        if not answered:
            raise NoReplies(call.label)
        ids = torch.cat(answered)
        return Replies(ids, join(parts), self.only(ids))

    def map(self, procedure: Procedure, shared: Mapping[str, Payload] | None = None, /, **each: Payload) -> Fields:
        """Server work over the rows of stacks, spread over the engine's cores; no client is asked."""
        ids = torch.arange(_length(next(iter(each.values()))))
        call = replace(self._call(procedure, "on_server", ids, shared, each), server=True)
        return join([chunk.fields for chunk in self.engine.execute(call)])

    def _call(
        self,
        procedure: Procedure,
        mark: str,
        ids: Tensor,
        shared: Mapping[str, Payload] | None,
        each: Mapping[str, Payload],
    ) -> Call:
        method = getattr(procedure, "__self__", None)
        name = getattr(procedure, "__name__", str(procedure))
        if method is None or not getattr(procedure, f"__{mark}__", False):
            raise TypeError(f"procedure={name!r} should be a method marked with @{mark}")
        for field_name, value in each.items():
            if _length(value) != len(ids):
                raise ValueError(f"{field_name}={_length(value)} rows should be one for each of {len(ids)}")
        self._common["calls"] += 1
        key = keys.fold_in(self.key, "call", self._common["calls"])
        return Call(method, name, ids, dict(shared or {}), dict(each), key, self.round)

    def log(self, **scalars: float) -> None:
        """Diagnostics of this round, written beside its metrics."""
        self._common["log"].update({n: float(v) for n, v in scalars.items()})

    @property
    def logged(self) -> dict[str, float]:
        return dict(self._common["log"])


def _length(value: Payload) -> int:
    return value.shape[0] if isinstance(value, Tensor) else next(iter(value.values())).shape[0]


def join(parts: list[Fields]) -> Fields:
    """Chunks of replies as one."""
    out: Fields = {}
    for name, first in parts[0].items():
        values: list[Any] = [p[name] for p in parts]
        out[name] = torch.cat(values) if isinstance(first, Tensor) else concat(values)
    return out
