"""Whether columns and targets of a user's own data are scaled alike: methods and models take them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
APART = 100.0  # times as far as the lower half of the columns spread: one column is then all that there is to see
SMALLEST, LARGEST, AWAY = 0.1, 10.0, 3.0  # spreads of targets, and a mean in spreads, that steps of usual size can bear


def notes_on_scales(x: Array, names: Sequence[str] | None = None, targets: Array | None = None) -> tuple[str, ...]:
    """What the user should scale, in sentences: columns ``[n, d]``, and targets that are numbers."""
    return (*_columns(x, names), *(() if targets is None else _targets(targets)))


def _columns(x: Array, names: Sequence[str] | None) -> list[str]:
    if x.ndim != 2 or x.dtype.kind != "f" or x.shape[1] < 2 or not len(x):
        return []
    spread = x.std(axis=0, dtype=np.float64)
    usual = float(np.sort(spread[spread > 0])[(int((spread > 0).sum()) - 1) // 2]) if (spread > 0).any() else 0.0
    widest = int(spread.argmax())
    if not usual or spread[widest] <= APART * usual or spread[widest] <= 1.0:
        return []
    name = f"column {names[widest]!r}" if names else f"feature {widest}"
    return [
        f"{name} spreads over {spread[widest]:.3g}, others over {usual:.3g}: scale columns alike, or gradient steps "
        "and kin's features see that one alone"
    ]


def _targets(y: Array) -> list[str]:
    if not len(y):
        return []
    mean, spread = float(y.mean(dtype=np.float64)), float(y.std(dtype=np.float64))
    if not spread or (SMALLEST <= spread <= LARGEST and abs(mean) <= AWAY * max(spread, 1.0)):
        return []
    return [
        f"targets have mean {mean:.3g} and spread {spread:.3g}: standardise them (mean 0, spread 1), which step sizes "
        "and kin's bins expect"
    ]
