"""Who is where: clients as ribbons between clusters, from round to round and on to the true clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clusterfl.report.svg import Html, colour, el, group, number, picture, shortened, text

WIDTH = 1160.0
COLUMNS = 8  # rounds that are drawn
NODE, TOP, LEFT, RIGHT = 14.0, 36.0, 30.0, 130.0


def rounds_shown(moved: Sequence[float], most: int = COLUMNS) -> list[int]:
    """Places of the rounds to draw: the first, the last, and those in between in which most clients moved.

    With the round before each of them, as far as there is room, so that a move is seen as one.
    """
    last = len(moved) - 1
    chosen = {0, last}
    for j in sorted((j for j in range(1, last) if moved[j] > 0), key=lambda j: (-moved[j], j)):
        for place in (j, j - 1):
            if len(chosen) < most:
                chosen.add(place)
    return sorted(chosen)


@dataclass(frozen=True)
class Side:
    """One column: which group each client is in, what groups are called, and their order from the top."""

    head: str
    groups: np.ndarray
    order: list[int]
    true: bool = False

    def name(self, k: int) -> str:
        return f"group {letter(k)}" if self.true else f"cluster {k}"


def letter(k: int) -> str:
    """a, b, …, z, then numbers: true clusters are not the numbers of found ones."""
    return chr(ord("a") + k) if 0 <= k < 26 else str(k)


def flow(
    columns: Sequence[np.ndarray],
    heads: Sequence[str],
    names: Sequence[str],
    *,
    title: str,
    true: np.ndarray | None = None,
    height: float = 380.0,
) -> Html:
    """One column of groups for each round, ribbons as thick as the number of clients between them."""
    sides = [Side(head, c, np.unique(c).tolist()) for head, c in zip(heads, columns, strict=True)]
    if true is not None:
        sides.append(Side("true cluster", true, _by_neighbours(true, columns[-1]), true=True))
    most = max(len(side.order) for side in sides)
    gap = min(16.0, 90.0 / most)
    unit = (height - 12 - TOP - gap * (most - 1)) / max(len(names), 1)
    step = (WIDTH - LEFT - RIGHT - NODE) / max(len(sides) - 1, 1)
    ribbons: list[Html] = []
    nodes: list[Html] = []
    for c, side in enumerate(sides):
        x, places = LEFT + c * step, _places(side, gap, unit, height)
        nodes += [text(x + NODE / 2, 20, side.head, "middle", "head")]
        nodes += _nodes(side, places, x, unit, names, named=c + 1 == len(sides))
        if c + 1 < len(sides):
            there = _places(sides[c + 1], gap, unit, height)
            ribbons += _ribbons(side, sides[c + 1], places, there, x + NODE, x + step, unit, names)
    return picture(WIDTH, height, [group(ribbons), group(nodes)], title)


def _by_neighbours(groups: np.ndarray, before: np.ndarray) -> list[int]:
    """Groups in the order of where their members stand on the column before, so that few ribbons cross."""
    return sorted(np.unique(groups).tolist(), key=lambda k: (float(before[groups == k].mean()), k))


def _places(side: Side, gap: float, unit: float, height: float) -> dict[int, float]:
    """Where each group begins, the column as a whole in the middle."""
    total = len(side.groups) * unit + gap * (len(side.order) - 1)
    y, places = TOP + (height - 12 - TOP - total) / 2, {}
    for k in side.order:
        places[k] = y
        y += float((side.groups == k).sum()) * unit + gap
    return places


def _nodes(
    side: Side, places: dict[int, float], x: float, unit: float, names: Sequence[str], *, named: bool
) -> list[Html]:
    parts = []
    for k, y in places.items():
        inside = side.groups == k
        size = int(inside.sum())
        told = f"{side.head}, {side.name(k)}\n{size} clients\n{some(names, inside)}"
        shade = "true" if side.true else colour(k)
        tall = max(size * unit, 1.0)
        parts.append(el("rect", x=x, y=y, width=NODE, height=tall, rx=3, class_=f"node {shade}", data_t=told))
        if named:
            parts.append(text(x + NODE + 8, y + tall / 2 + 4, f"{side.name(k)} · {size}", "start", "name"))
    return parts


def _ribbons(
    here: Side,
    there: Side,
    places: dict[int, float],
    next_places: dict[int, float],
    x0: float,
    x1: float,
    unit: float,
    names: Sequence[str],
) -> list[Html]:
    out, into, parts = dict(places), dict(next_places), []
    middle = (x0 + x1) / 2
    for a in here.order:
        for b in there.order:
            between = (here.groups == a) & (there.groups == b)
            size = int(between.sum())
            if not size:
                continue
            thick, y0, y1 = size * unit, out[a], into[b]
            out[a], into[b] = y0 + thick, y1 + thick
            p = [number(v) for v in (x0, y0, middle, y1, x1, y1 + thick, y0 + thick)]
            shape = (
                f"M{p[0]},{p[1]} C{p[2]},{p[1]} {p[2]},{p[3]} {p[4]},{p[3]} L{p[4]},{p[5]} "
                f"C{p[2]},{p[5]} {p[2]},{p[6]} {p[0]},{p[6]} Z"
            )
            told = f"{here.name(a)} → {there.name(b)}\n{size} clients\n{some(names, between)}"
            parts.append(el("path", d=shape, class_=f"ribbon {colour(a)}", data_t=told))
    return parts


def some(names: Sequence[str], inside: np.ndarray, most: int = 12) -> str:
    """The first few names, and how many more there are."""
    places = np.flatnonzero(inside)
    shown = ", ".join(shortened(names[i], 24) for i in places[:most])
    return shown + (f" and {len(places) - most:,} more" if len(places) > most else "")
