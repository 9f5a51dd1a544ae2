"""Clients that come as arrays from Python: samples and labels checked, and coded where labels are text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl.data.labels import class_numbers, code_labels, finite, finite_numbers
from clusterfl.data.shards import PIECE
from clusterfl.errors import DataError

Array = npt.NDArray[Any]
Side = list[tuple[Tensor, Tensor]]  # one (x, y) per client


def plain_names(n: int) -> tuple[str, ...]:
    """client-00, client-01, …: of clients that have no names of their own."""
    digits = max(2, len(str(n - 1)))
    return tuple(f"client-{i:0{digits}d}" for i in range(n))


def checked_names(names: Sequence[Any], n: int) -> tuple[str, ...]:
    """One name per client, no two alike."""
    given = tuple(str(name) for name in names)
    if len(given) != n:
        raise ValueError(f"names={len(given)} entries should be one per client ({n})")
    if len(set(given)) < n:
        twice = next(name for name in given if given.count(name) > 1)
        raise ValueError(f"names={twice!r} should be the name of one client, but several have it")
    return given


def read_sides(
    sides: dict[str, Sequence[tuple[Any, Any]]],
    names: Sequence[str],
    classes: int | None,
    class_names: Sequence[str] | None,
    *,
    numbers: bool = False,
) -> tuple[list[Side], int, tuple[str, ...] | None]:
    """Train and test clients as tensors, the number of classes (0 of numbers), and their names where there are any."""
    clients = [
        (side, i, *_pair(side, i, names[i], *pair)) for side, pairs in sides.items() for i, pair in enumerate(pairs)
    ]
    if numbers:
        targets = [finite_numbers(y, _where(side, names[i])) for side, i, _, y in clients]
        return _by_side(sides, clients, targets), 0, None
    labels = [y for *_, y in clients]
    known = None if class_names is None else tuple(str(name) for name in class_names)
    if known is not None and classes is not None and classes != len(known):
        raise ValueError(f"class_names={len(known)} names should be as many as classes={classes}")
    if any(y.dtype.kind not in "biuf" for y in labels):
        coded, known = _coded(clients, names, known)
    else:
        most = len(known) if known is not None else classes
        coded = [class_numbers(y, _where(side, names[i]), most) for side, i, _, y in clients]
        if most is None:
            _from_zero(clients, coded, names)
    found = max((int(y.max()) for y in coded if len(y)), default=-1) + 1
    return _by_side(sides, clients, coded), len(known) if known is not None else classes or found, known


def _by_side(sides: Iterable[str], clients: list[tuple[str, int, Array, Array]], targets: list[Array]) -> list[Side]:
    out: dict[str, Side] = {side: [] for side in sides}
    for (side, _, x, _), y in zip(clients, targets, strict=True):
        out[side].append((torch.from_numpy(x), torch.from_numpy(y)))
    return list(out.values())


def are_numbers(y: Array) -> bool:
    """Whether targets cannot be classes: one has a fraction, or a sample has several."""
    return y.dtype.kind == "f" and (y.ndim > 1 or bool((np.isfinite(y) & (y != np.floor(y))).any()))


def _pair(side: str, i: int, name: str, x: Any, y: Any) -> tuple[Array, Array]:
    """Whole numbers stay whole (an embedding wants them), bytes and booleans become floats as all else."""
    samples, labels = np.ascontiguousarray(x), np.ascontiguousarray(y)
    if len(samples) != len(labels):
        raise ValueError(f"{side}[{i}] ({name}): {len(samples)} samples should have as many labels, not {len(labels)}")
    if samples.dtype.kind == "O" and all(
        isinstance(v, bool | int | float | np.number | np.bool_) for v in samples.flat
    ):
        samples = samples.astype(np.float64)  # a table with columns of several types
    finite(samples, _where(side, name))
    kept = samples.dtype.kind in "iu" and samples.dtype != np.uint8
    return samples.astype(np.int64 if kept else np.float32), labels


def _coded(
    clients: list[tuple[str, int, Array, Array]], names: Sequence[str], known: tuple[str, ...] | None
) -> tuple[list[Array], tuple[str, ...]]:
    """Labels that are text, coded alike for everybody."""
    if known is None:
        known = tuple(sorted({str(v) for *_, y in clients for v in y.tolist()}))
    return [code_labels(y, _where(side, names[i]), known)[0] for side, i, _, y in clients], known


def _from_zero(clients: list[tuple[str, int, Array, Array]], coded: list[Array], names: Sequence[str]) -> None:
    """Labels that nobody ever has at 0 count from 1, and would get a class too many."""
    held = [y for y in coded if len(y)]
    if held and min(int(y.min()) for y in held) == 1:
        j = next(j for j, y in enumerate(coded) if len(y))
        side, i = clients[j][:2]
        raise DataError(
            f"{_where(side, names[i])(0)}: labels should start at 0, but nobody's does; subtract 1 from them, "
            "or give classes= where class 0 is one that nobody has"
        )


def _where(side: str, name: str) -> Any:
    return lambda row: f"client {name!r}, {side} row {row}"


def uncopied(name: str, values: Any, dtype: torch.dtype) -> Tensor:
    """An array as a tensor over the same memory; one that would have to be copied is refused."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        raise ValueError(f'{name} should be writeable memory: open a file with np.memmap(…, mode="c")')
    tensor = torch.as_tensor(values)
    if tensor.dtype != dtype:
        raise ValueError(
            f"{name}={tensor.dtype} should be {dtype}: another type would have to be copied".replace("torch.", "")
        )
    return tensor


def check_labels(y: Tensor, classes: int) -> None:
    """Labels of a pool are classes; read some at a time, for the pool may be larger than memory."""
    for j, part in enumerate(y.split(PIECE)):
        wrong = ((part < 0) | (part >= classes)).nonzero()
        if len(wrong):
            row = int(wrong[0]) + j * PIECE
            raise DataError(
                f"y[{row}]: the label {int(y[row])} should be at least 0 and below the number of classes, {classes}: "
                "class numbers start at 0"
            )
