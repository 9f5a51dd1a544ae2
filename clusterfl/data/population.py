"""All clients and what they hold, and the truth that only metrics may read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from clusterfl.data.arrays import are_numbers, check_labels, checked_names, plain_names, read_sides, uncopied
from clusterfl.data.rules import Computed, Rule
from clusterfl.data.scales import notes_on_scales
from clusterfl.data.shards import Shards

Targets = Literal["auto", "classes", "numbers"]


@dataclass(frozen=True, repr=False)
class Population:
    """All clients: ids ``0 .. clients - 1`` train, the ids after them are unseen and only join at the end."""

    train: Shards
    test: Shards
    clients: int
    classes: int  # 0: targets are numbers (regression)
    name: str = "own data"
    truth: Tensor | None = None  # [N + U] int64: the true cluster of every client; metrics only
    soft_truth: bool = False  # the truth is only a client's main group (mixtures): ARI is flagged
    indicators: tuple[Tensor, Tensor] | None = None  # public samples, taken out before clients got data
    notes: tuple[str, ...] = field(default=())  # what the user should know about how the split was made
    drift: tuple[int, Population] | None = None  # a round, and what the same clients hold from it on
    names: tuple[str, ...] = ()  # of all clients, unseen ones included; empty: client-00, client-01, …
    class_names: tuple[str, ...] | None = None  # None: classes are numbers
    feature_names: tuple[str, ...] | None = None  # columns of a table
    categories: Mapping[str, tuple[str, ...]] | None = None  # the words that columns of words may hold
    pixels: tuple[float, str] | None = None  # the white level of bytes and how they were scaled; None: as they came
    elsewhere: ClassVar[bool] = False  # whether only names and sizes are here, and the data on nodes of its own

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"test={len(self.test)} clients should equal train={len(self.train)} clients")
        names = checked_names(self.names, len(self.train)) if self.names else plain_names(len(self.train))
        object.__setattr__(self, "names", names)
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(f"class_names={len(self.class_names)} names should be one per class ({self.classes})")
        if self.truth is not None and len(self.truth) != len(self.train):
            raise ValueError(f"truth={len(self.truth)} entries should be one per client ({len(self.train)})")
        if self.drift is not None and len(self.drift[1].train) != len(self.train):
            raise ValueError(f"drift={len(self.drift[1].train)} clients should equal train={len(self.train)}")

    def at(self, round_: int) -> Population:
        """What clients hold in that round."""
        return self if self.drift is None or round_ < self.drift[0] else self.drift[1].at(round_)

    def __repr__(self) -> str:
        """The clients in a few words."""
        few = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        sizes, shape = self.train.sizes, "x".join(map(str, self.input_shape)) or "1"
        kinds = "" if self.class_names is None else f" ({', '.join(self.class_names[:5])}{', …' * (self.classes > 5)})"
        truth = "" if self.truth is None else f", {self.true_clusters} true clusters"
        learnt = "targets that are numbers" if self.regression else f"{self.classes} classes{kinds}"
        return (
            f"Population {self.name!r}: {self.clients} clients that train and {self.unseen} unseen ({few}); "
            f"{int(sizes.sum())} train samples, {int(sizes.min())} to {int(sizes.max())} per client, of shape {shape}; "
            f"{learnt}{truth}"
        )

    def class_name(self, label: int) -> str:
        return str(label) if self.class_names is None else self.class_names[label]

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return not self.classes

    @property
    def outputs(self) -> int:
        """How many numbers a model answers: one per class, or as many as a sample has targets."""
        return self.classes or prod(self.train.y.shape[1:])

    @property
    def unseen(self) -> int:
        return len(self.train) - self.clients

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def true_clusters(self) -> int | None:
        return None if self.truth is None else int(self.truth[: self.clients].unique().numel())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything a run reads: equal digests are equal data."""
        h = hashlib.sha256()
        for shards in (self.train, self.test):
            for t in (shards.x, shards.y, shards.rows, shards.offsets):
                if not isinstance(t, Tensor):  # as of the list that it stands for
                    h.update(str((torch.int64, (int(shards.offsets[-1]),))).encode())
                    for ids in shards.pieces():
                        h.update(shards.rows_of_all(ids).numpy().data)
                    continue
                h.update(str((t.dtype, tuple(t.shape))).encode())
                h.update(np.ascontiguousarray(t.numpy()).data)
        h.update(f"{self.clients} {self.classes}".encode())
        for t in (self.truth, *(self.indicators or ())):
            h.update(b"-" if t is None else np.ascontiguousarray(t.numpy()).tobytes())
        if self.drift is not None:
            h.update(f"{self.drift[0]} {self.drift[1].digest}".encode())
        return h.hexdigest()

    @staticmethod
    def from_arrays(
        train: Sequence[tuple[Any, Any]],
        test: Sequence[tuple[Any, Any]],
        *,
        names: Sequence[str] | None = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        targets: Targets = "auto",
        truth: Sequence[int] | None = None,
        unseen: int = 0,
        name: str = "own data",
    ) -> Population:
        """A population of clients whose data is already split: one (x, y) pair of arrays per client.

        Labels are class numbers from 0, or text. ``targets`` says whether y are classes or numbers (regression);
        "auto": numbers where any has a fraction or a sample has several. Samples become float32, whole numbers stay
        whole (for embeddings). The last ``unseen`` clients take no part in training and are admitted at the end.
        """
        if len(train) != len(test):
            raise ValueError(f"test={len(test)} clients should equal train={len(train)} clients")
        if not 0 <= unseen < max(len(train), 1):
            raise ValueError(f"unseen={unseen} should be at least 0 and below the number of clients, {len(train)}")
        called = plain_names(len(train)) if names is None else checked_names(names, len(train))
        open_ = targets == "auto" and classes is None and class_names is None
        numbers = targets == "numbers" or (open_ and any(are_numbers(np.asarray(y)) for _, y in (*train, *test)))
        sides, found, known = read_sides({"train": train, "test": test}, called, classes, class_names, numbers=numbers)
        held = Shards.from_parts(sides[0])
        return Population(
            held,
            Shards.from_parts(sides[1]),
            clients=len(train) - unseen,
            classes=found,
            truth=None if truth is None else torch.as_tensor(truth, dtype=torch.int64),
            notes=notes_on_scales(held.x.numpy(), None, held.y.numpy() if numbers else None),
            name=name,
            names=called,
            class_names=known,
        )

    @staticmethod
    def from_pool(
        x: Any,
        y: Any,
        train: Sequence[Any],
        test: Sequence[Any],
        *,
        names: Sequence[str] | None = None,
        classes: int,
        truth: Sequence[int] | None = None,
        unseen: int = 0,
        name: str = "own data",
    ) -> Population:
        """Clients as rows of one pool that is not copied, so that it may be larger than memory.

        ``x`` float32 ``[pool, …]`` and ``y`` int64 ``[pool]`` (or float32, with ``classes=0``) are arrays, tensors or
        ``np.memmap`` (mode ``"c"``: a private view of the file); ``train`` and ``test`` hold one array of row numbers
        per client. Labels are checked; nobody looks at all samples: that they are numbers is not checked.
        """
        if len(train) != len(test):
            raise ValueError(f"test={len(test)} clients should equal train={len(train)} clients")
        if not 0 <= unseen < max(len(train), 1):
            raise ValueError(f"unseen={unseen} should be at least 0 and below the number of clients, {len(train)}")
        pool = [uncopied("x", x, torch.float32), uncopied("y", y, torch.int64 if classes else torch.float32)]
        if len(pool[0]) != len(pool[1]):
            raise ValueError(f"y={len(pool[1])} targets should be as many as the samples, {len(pool[0])}")
        if classes:
            check_labels(pool[1], classes)
        sides = []
        for side, held in (("train", train), ("test", test)):
            rows = [torch.as_tensor(np.asarray(r), dtype=torch.int64) for r in held]
            flat = torch.cat(rows)
            if len(flat) and not (int(flat.min()) >= 0 and int(flat.max()) < len(pool[1])):
                raise ValueError(f"{side}: row numbers should be at least 0 and below the {len(pool[1])} of the pool")
            offsets = torch.tensor([0, *(len(r) for r in rows)]).cumsum(0)
            sides.append(Shards(pool[0], pool[1], flat, offsets))
        return Population(
            sides[0],
            sides[1],
            clients=len(train) - unseen,
            classes=classes,
            truth=None if truth is None else torch.as_tensor(truth, dtype=torch.int64),
            name=name,
            names=() if names is None else checked_names(names, len(train)),
        )

    @staticmethod
    def from_rule(
        x: Any,
        y: Any,
        train: Rule | Callable[[Tensor, Tensor], Tensor],
        test: Rule | Callable[[Tensor, Tensor], Tensor],
        *,
        clients: int,
        samples: int | Sequence[int],
        test_samples: int | Sequence[int],
        classes: int,
        truth: Sequence[int] | Tensor | None = None,
        unseen: int = 0,
        name: str = "own data",
    ) -> Population:
        """Clients whose rows of one pool are computed when they are needed: a million of them need no list.

        ``x`` and ``y`` are as in :meth:`from_pool`. ``train`` and ``test`` are rules (``clusterfl.data.rules``) or pure
        functions ``(ids, within) -> row numbers`` of equally shaped int64 tensors: the client, and the place among its
        ``samples``, of which everybody has as many unless there is a number for each. The last ``unseen`` of all
        ``clients`` take no part in training.
        """
        if not 0 <= unseen < max(clients, 1):
            raise ValueError(f"unseen={unseen} should be at least 0 and below the number of clients, {clients}")
        pool = [uncopied("x", x, torch.float32), uncopied("y", y, torch.int64 if classes else torch.float32)]
        if len(pool[0]) != len(pool[1]):
            raise ValueError(f"y={len(pool[1])} targets should be as many as the samples, {len(pool[0])}")
        if classes:
            check_labels(pool[1], classes)
        sides = []
        for side, rule, many in (("samples", train, samples), ("test_samples", test, test_samples)):
            sizes = torch.as_tensor(many, dtype=torch.int64)
            sizes = sizes.expand(clients) if isinstance(many, int) else sizes
            if len(sizes) != clients or int(sizes.min()) < 0:
                raise ValueError(f"{side} should be a number of samples for each of the {clients} clients")
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
            sides.append(Shards(pool[0], pool[1], Computed(rule) if callable(rule) else rule, offsets))
        return Population(
            sides[0],
            sides[1],
            clients=clients - unseen,
            classes=classes,
            truth=None if truth is None else torch.as_tensor(truth, dtype=torch.int64),
            name=name,
        )

    @staticmethod
    def from_datasets(
        train: Sequence[Dataset[Any]],
        test: Sequence[Dataset[Any]],
        *,
        names: Sequence[str] | None = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        targets: Targets = "auto",
        truth: Sequence[int] | None = None,
        unseen: int = 0,
        name: str = "own data",
    ) -> Population:
        """As :meth:`from_arrays`, for one ``torch.utils.data.Dataset`` of (x, y) per client."""

        def arrays(data: Dataset[Any]) -> tuple[Any, Any]:
            pairs = [data[j] for j in range(len(data))]  # type: ignore[arg-type]
            x = torch.stack([torch.as_tensor(p[0]) for p in pairs])
            return x.numpy(), np.array([np.asarray(p[1]) for p in pairs])

        return Population.from_arrays(
            [arrays(d) for d in train],
            [arrays(d) for d in test],
            names=names,
            classes=classes,
            class_names=class_names,
            targets=targets,
            truth=truth,
            unseen=unseen,
            name=name,
        )
