"""Curves over rounds, and points of cost against gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clusterfl.report.svg import (
    Html,
    Scale,
    Unit,
    colour,
    el,
    group,
    in_steps,
    line,
    number,
    picture,
    said,
    scale_over,
    text,
)

WIDTH, HEIGHT = 560.0, 320.0
LEFT, RIGHT, BOTTOM = 62.0, 16.0, 44.0
ROW = 19.0  # of a legend
POINTS = 240  # of a curve: more cannot be told apart


@dataclass(frozen=True)
class Curve:
    """One line; ``colour`` None is ink. ``tags`` are what the page's filters go by."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    dashed: bool = False
    strong: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


def thinned(n: int, most: int = POINTS) -> np.ndarray:
    """Places of at most ``most`` of ``n`` entries, evenly spaced, the first and the last among them."""
    return np.arange(n) if n <= most else np.unique(np.linspace(0, n - 1, most).round().astype(int))


def curves(
    lines: Sequence[Curve],
    *,
    title: str,
    x_name: str,
    x_unit: Unit = "count",
    unit: Unit = "share",
    zero: bool = False,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> Html:
    """Lines with bands over a common axis; pointing at a place tells all values there."""
    lines = [thin for c in lines if len((thin := _thin(c)).x)]
    legend, top = _legend(lines, width)
    everything = [v for c in lines for part in (c.y, c.low, c.high) if part is not None for v in part]
    xs = np.concatenate([c.x for c in lines]) if lines else np.zeros(1)
    low, high = float(xs.min()), float(xs.max())
    low, high = (low, high) if high > low else (low - 0.5, low + 0.5)
    across = Scale(low, high, LEFT, width - RIGHT)
    up = scale_over(everything, height - BOTTOM, top, zero=zero, most=1.0 if unit in ("share", "index") else None)
    parts = [*_axes(across, up, x_name, x_unit, unit), *(_curve(c, across, up) for c in lines)]
    parts += _bands(lines, across, up, x_name, x_unit, unit)
    return picture(width, height, [*legend, *parts], title)


@dataclass(frozen=True)
class Point:
    """A mean with its spread both ways."""

    name: str
    x: float
    y: float
    colour: int
    x_spread: float = 0.0
    y_spread: float = 0.0
    tags: Mapping[str, str] = field(default_factory=dict)


def points(found: Sequence[Point], *, title: str, x_name: str, x_unit: Unit, unit: Unit) -> Html:
    """Points with names beside them and bars for their spread."""
    xs = [v for p in found for v in (p.x - p.x_spread, p.x + p.x_spread)]
    ys = [v for p in found for v in (p.y - p.y_spread, p.y + p.y_spread)]
    across = scale_over(xs, LEFT, WIDTH - RIGHT - 20, zero=True)
    up = scale_over(ys, HEIGHT - BOTTOM, 18.0, most=1.0 if unit == "share" else None)
    parts = _axes(across, up, x_name, x_unit, unit)
    placed: list[tuple[float, float]] = []
    for p in sorted(found, key=lambda p: -p.y):
        x, y = across(p.x), up(p.y)
        side = "end" if x > WIDTH * 0.7 else "start"
        at = y - 9
        while any(abs(at - b) < 13 and abs(x - a) < 110 for a, b in placed):
            at += 13
        placed.append((x, at))
        told = f"{p.name}\n{said(p.y, unit)}\n{said(p.x, x_unit)}"
        marks = [
            line(across(p.x - p.x_spread), y, across(p.x + p.x_spread), y, "spread"),
            line(x, up(p.y - p.y_spread), x, up(p.y + p.y_spread), "spread"),
            el("circle", cx=x, cy=y, r=5.5, class_="dot", data_t=told),
            text(x + (-9 if side == "end" else 9), at + 4, p.name, side, "name"),
        ]
        parts.append(group(marks, class_=colour(p.colour), **_data(p.tags)))
    return picture(WIDTH, HEIGHT, parts, title)


def _data(tags: Mapping[str, str]) -> dict[str, object]:
    return {f"data_{name}": value for name, value in tags.items()}


def _thin(c: Curve) -> Curve:
    known = np.isfinite(c.y)
    keep = np.flatnonzero(known)[thinned(int(known.sum()))]

    def cut(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[keep]

    return Curve(c.name, c.x[keep], c.y[keep], c.colour, cut(c.low), cut(c.high), c.dashed, c.strong, c.tags)


def _legend(lines: Sequence[Curve], width: float) -> tuple[list[Html], float]:
    """The names in as many rows as they need, and where the picture may begin below them."""
    parts, x, y = [], LEFT, 14.0
    for c in lines:
        needed = 38.0 + 8.4 * len(c.name)
        if x > LEFT and x + needed > width:
            x, y = LEFT, y + ROW
        mark = line(
            x, y - 4, x + 18, y - 4, "curve" + (" strong" if c.strong else "") + (" dashed" if c.dashed else "")
        )
        parts.append(group([mark, text(x + 24, y, c.name, "start", "name")], class_=_colour(c), **_data(c.tags)))
        x += needed
    return parts, y + 20


def _colour(c: Curve) -> str:
    return "ink" if c.colour is None else colour(c.colour)


def _axes(across: Scale, up: Scale, x_name: str, x_unit: Unit, unit: Unit) -> list[Html]:
    parts = []
    for tick in up.ticks(5):
        y = up(tick)
        parts += [line(LEFT, y, across.end, y), text(LEFT - 8, y + 4, _tick(tick, unit), "end", "tick")]
    steps = across.ticks(round((across.end - across.start) / 80))
    if x_unit == "count":
        steps = [t for t in steps if t == int(t)]
    for tick in steps:
        parts.append(text(across(tick), up.start + 18, _tick(tick, x_unit), "middle", "tick"))
    parts.append(line(LEFT, up.start, across.end, up.start, "axis"))
    parts.append(text((LEFT + across.end) / 2, up.start + 37, x_name, "middle", "axis-name"))
    return parts


def _tick(value: float, unit: Unit) -> str:
    if unit == "share":
        return f"{100 * value:g} %"
    if unit in ("number", "index"):
        return f"{value:g}"
    if unit == "bytes":
        return in_steps(value, 1000.0, ("B", "kB", "MB", "GB", "TB"), digits="3g")
    return said(value, unit)


def _curve(c: Curve, across: Scale, up: Scale) -> Html:
    xs = [across(v) for v in c.x]
    parts = []
    if c.low is not None and c.high is not None and len(xs) > 1:
        edge = [f"{number(x)},{number(up(v))}" for x, v in zip(xs, c.high, strict=True)]
        back = [f"{number(x)},{number(up(v))}" for x, v in zip(xs, c.low, strict=True)]
        parts.append(el("polygon", points=" ".join([*edge, *reversed(back)]), class_="band"))
    if len(xs) == 1:
        parts.append(el("circle", cx=xs[0], cy=up(float(c.y[0])), r=4.0, class_="dot"))
    elif xs:
        path = " ".join(f"{number(x)},{number(up(float(v)))}" for x, v in zip(xs, c.y, strict=True))
        kind = "curve" + (" strong" if c.strong else "") + (" dashed" if c.dashed else "")
        parts.append(el("polyline", points=path, class_=kind))
    return group(parts, class_=_colour(c), **_data(c.tags))


def _bands(
    lines: Sequence[Curve], across: Scale, up: Scale, x_name: str, x_unit: Unit, unit: Unit, most: int = 120
) -> list[Html]:
    """Invisible stripes that say what the curves are there; only where all curves have the same places."""
    if not lines or any(len(c.x) != len(lines[0].x) or (c.x != lines[0].x).any() for c in lines):
        return []
    shown = thinned(len(lines[0].x), most)
    places = [across(float(lines[0].x[j])) for j in shown]
    parts = []
    for n, j in enumerate(shown):
        left = LEFT if n == 0 else (places[n - 1] + places[n]) / 2
        right = across.end if n + 1 == len(shown) else (places[n] + places[n + 1]) / 2
        where = f"{x_name} {said(float(lines[0].x[j]), x_unit)}"
        told = "\n".join([where, *(f"{c.name}: {said(float(c.y[j]), unit)}" for c in lines)])
        parts.append(
            el("rect", x=left, y=up.end, width=right - left, height=up.start - up.end, class_="stripe", data_t=told)
        )
    return parts
