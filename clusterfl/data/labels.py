"""Labels as classes: codes from 0 and the names that they stand for. What is no class is refused by its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl.errors import DataError, suggestion

Array = npt.NDArray[Any]
Where = Callable[[int], str]  # the place of a row in words
MOST_CLASSES = 1_000_000  # a model has an output for each


def code_labels(y: Array, where: Where, known: Sequence[str] | None = None) -> tuple[Array, tuple[str, ...]]:
    """Codes (int64) and class names: the known ones, else all that occur, numbers by size and text by alphabet."""
    values = whole(y, where) if y.dtype.kind == "f" else y.astype(str) if y.dtype.kind not in "biu" else y
    found, codes = np.unique(values, return_inverse=True)
    names = [str(v).lower() if y.dtype.kind == "b" else str(v) for v in found.tolist()]
    if known is None:
        return codes.astype(np.int64), tuple(names)
    place = {name: i for i, name in enumerate(known)}
    for j, name in enumerate(names):
        if name not in place:
            row = int(np.flatnonzero(codes == j)[0])
            raise DataError(f"{where(row)}: the class {name!r} should be a known one{suggestion(name, known)}")
    return np.array([place[name] for name in names], dtype=np.int64)[codes], tuple(known)


def whole(y: Array, where: Where) -> Array:
    """Labels that came as floats, as whole numbers."""
    unknown = np.flatnonzero(~np.isfinite(y))
    if len(unknown):
        raise DataError(f"{where(int(unknown[0]))}: the label {y[unknown[0]]} should be a class; fill or remove it")
    broken = np.flatnonzero(y != np.floor(y))
    if len(broken):
        raise DataError(
            f"{where(int(broken[0]))}: the label {y[broken[0]]:g} should be a class (text or a whole number); "
            'to learn numbers, set [task] loss = "mse" (--set task.loss=mse; targets="numbers" of arrays)'
        )
    far = np.flatnonzero(np.abs(y) >= 2.0**63)
    if len(far):
        raise DataError(f"{where(int(far[0]))}: the label {int(y[far[0]])} should be below 2^63")
    return y.astype(np.int64)


def class_numbers(y: Array, where: Where, classes: int | None = None) -> Array:
    """Labels that are class numbers already, from 0 and below ``classes``."""
    if y.dtype.kind == "f":
        whole(y, where)
    low = np.flatnonzero(y < 0)
    if len(low):
        raise DataError(f"{where(int(low[0]))}: the label {int(y[low[0]])} should be a class number from 0")
    high = np.flatnonzero(y >= (MOST_CLASSES if classes is None else classes))  # before they are cut to 63 bits
    if len(high):
        limit = f"{MOST_CLASSES}" if classes is None else f"the number of classes, {classes}: class numbers start at 0"
        raise DataError(f"{where(int(high[0]))}: the label {int(y[high[0]])} should be below {limit}")
    return y.astype(np.int64)


def finite_numbers(y: Array, where: Where) -> Array:
    """Targets of a regression, as float32."""
    if y.dtype.kind not in "biuf":
        row = where(0)
        raise DataError(f"{row}: targets should be numbers for a loss of numbers; use loss 'cross-entropy' for classes")
    bad = unbounded(y)
    if len(bad):
        raise DataError(f"{where(int(bad[0]))}: the target {y[bad[0]]} should be a finite number")
    return y.astype(np.float32)


def finite(x: Array, where: Where) -> None:
    """Refuses what is no number, and NaN and infinity by the first row that has one."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where(0)}: samples should be real numbers, not {x.dtype}")
    bad = unbounded(x)
    if len(bad):
        raise DataError(
            f"{where(int(bad[0]))}: samples should be finite numbers, without NaN or infinity (above 3e38 is infinite)"
        )


def unbounded(values: Array) -> Array:
    """Rows with a number that is not finite as float32, which is what models read."""
    if values.dtype.kind != "f":
        return np.zeros(0, dtype=np.int64)
    with np.errstate(over="ignore"):
        return np.flatnonzero(
            ~np.isfinite(values.astype(np.float32, copy=False)).all(axis=tuple(range(1, values.ndim)))
        )
