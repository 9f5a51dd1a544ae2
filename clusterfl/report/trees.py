"""Drawings of ranks and of clusters that were cut in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterfl.report.svg import Html, Scale, colour, el, group, line, picture, text

WIDTH = 560.0


@dataclass(frozen=True)
class Cut:
    """``child`` left ``parent`` in that round."""

    parent: int
    child: int
    round: int


def split_tree(cuts: Sequence[Cut], last: int, sizes: Mapping[int, int], *, title: str) -> Html:
    """Rounds from left to right; a cluster is a line that begins where it was cut from another."""
    order = [0]
    for cut in cuts:
        order.insert(order.index(cut.parent) + 1, cut.child)
    tall = 30.0
    across = Scale(0.0, max(float(last), 1.0), 20.0, WIDTH - 150)
    y = {k: 18.0 + i * tall for i, k in enumerate(order)}
    begins = {0: 0, **{cut.child: cut.round for cut in cuts}}
    parts = []
    for cut in cuts:
        x = across(cut.round)
        told = f"round {cut.round}\ncluster {cut.child} left cluster {cut.parent}"
        parts.append(group([line(x, y[cut.parent], x, y[cut.child], "curve")], class_=colour(cut.child)))
        parts.append(group([el("circle", cx=x, cy=y[cut.parent], r=4.5, class_="dot", data_t=told)], class_="ink"))
    for k in order:
        end = across(last)
        name = f"cluster {k} · {sizes.get(k, 0)} clients"
        marks = [
            line(across(begins[k]), y[k], end, y[k], "curve strong"),
            text(end + 10, y[k] + 4, name, "start", "name"),
        ]
        parts.append(group(marks, class_=colour(k)))
    foot = 18.0 + len(order) * tall
    whole = [tick for tick in across.ticks(6) if tick == int(tick)]
    parts += [text(across(tick), foot + 6, f"{tick:g}", "middle", "tick") for tick in whole]
    parts.append(text(across(last / 2), foot + 26, "round", "middle", "axis-name"))
    return picture(WIDTH, foot + 34, parts, title)


def rank_diagram(ranks: Mapping[str, float], distance: float, colours: Mapping[str, int], *, title: str) -> Html:
    """Mean ranks on a line, best on the left; a bar joins methods closer than the critical distance (Demšar, 2006)."""
    names = sorted(ranks, key=lambda name: (ranks[name], name))
    k = len(names)
    across = Scale(1.0, float(max(k, 2)), 150.0, WIDTH - 150)
    groups = joined([ranks[name] for name in names], distance)
    axis, bars_end = 46.0, 46.0 + 14 + 9 * len(groups)
    parts = [line(across(1), axis, across(max(k, 2)), axis, "axis")]
    for tick in range(1, k + 1):
        parts += [
            line(across(tick), axis - 5, across(tick), axis, "axis"),
            text(across(tick), axis - 10, tick, "middle", "tick"),
        ]
    x0, x1 = across(1), across(min(1 + distance, max(k, 2)))
    parts += [line(x0, 12, x1, 12, "curve"), line(x0, 8, x0, 16, "curve"), line(x1, 8, x1, 16, "curve")]
    parts.append(text(x1 + 8, 16, f"critical distance {distance:.2f}", "start", "tick"))
    for i, (a, b) in enumerate(groups):
        y = axis + 11 + 9 * i
        parts.append(line(across(ranks[names[a]]) - 3, y, across(ranks[names[b]]) + 3, y, "tie"))
    half = (k + 1) // 2
    for i, name in enumerate(names):
        left = i < half
        row = i if left else k - 1 - i
        y, x = bars_end + 18 + 22 * row, across(ranks[name])
        end = 142.0 if left else WIDTH - 142
        words = f"{name} · {ranks[name]:.2f}"
        marks = [
            line(x, axis, x, y, "curve"),
            line(x, y, end, y, "curve"),
            text(end + (-6 if left else 6), y + 4, words, "end" if left else "start", "name"),
        ]
        parts.append(group(marks, class_=colour(colours[name])))
    return picture(WIDTH, bars_end + 18 + 22 * half, [group(parts, class_="ink")], title)


def joined(ranks: Sequence[float], distance: float) -> list[tuple[int, int]]:
    """The longest stretches (first, last) of sorted ranks that lie within the distance."""
    found: list[tuple[int, int]] = []
    for a in range(len(ranks)):
        b = max(j for j in range(a, len(ranks)) if ranks[j] - ranks[a] <= distance)
        if b > a and (not found or b > found[-1][1]):
            found.append((a, b))
    return found
