"""Matrices as coloured squares: small ones with names and numbers, large ones as one image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from clusterfl.report.svg import Html, Unit, el, line, picture, png, said, shortened, text

DRAWN = 3_000  # squares that can be pointed at; above that the matrix is one image
Palette = Literal["rising", "both"]
RISING, FALLING = (47, 95, 224), (214, 84, 40)


def heat_map(
    values: np.ndarray,
    *,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    unit: Unit = "share",
    low: float | None = None,
    high: float | None = None,
    palette: Palette = "rising",
    width: float = 560.0,
    cell: float | None = None,
    marked: Sequence[tuple[int, int]] = (),
    cuts: Sequence[int] = (),
    row_cuts: Sequence[int] | None = None,
    x_name: str = "",
    beside: tuple[str, Sequence[str]] | None = None,
) -> Html:
    """Rows from the top. ``marked`` squares have a frame; lines are drawn before the rows and columns of ``cuts``.

    ``beside``: a heading and a word for each row, to the right of it.
    """
    values = np.asarray(values, dtype=float)
    n, m = values.shape
    longest = max((len(r) for r in rows), default=0)
    left = 16.0 + (min(8.2 * min(longest, 18), 140.0) if rows else 0)
    top, right = (30.0 if columns or beside else 8.0), (78.0 if beside else 12.0)
    across = cell or (width - left - right) / max(m, 1)
    down = across if cell or not rows else min(across, max(13.0, min(28.0, 440.0 / max(n, 1))))
    strength = scaled(values, low, high, palette)
    parts = _names(rows, columns, left, top, across, down)
    if values.size <= DRAWN:
        parts += _squares(values, strength, left, top, across, down, unit, rows, columns, set(marked))
    else:
        image = png(pixels(strength))
        place = {"x": left, "y": top, "width": across * m, "height": down * n}
        parts.append(el("image", href=image, preserveAspectRatio="none", class_="pixels", **place))
    for c in cuts:
        parts.append(line(left + c * across, top, left + c * across, top + n * down, "cut"))
    for c in cuts if row_cuts is None else row_cuts:
        parts.append(line(left, top + c * down, left + m * across, top + c * down, "cut"))
    foot = top + n * down
    if x_name:
        parts.append(text(left + m * across / 2, foot + 18, x_name, "middle", "axis-name"))
    if beside is not None:
        parts.append(text(width - 8, top - 8, beside[0], "end", "tick"))
        parts += [text(width - 8, top + (i + 0.5) * down + 4, word, "end", "name") for i, word in enumerate(beside[1])]
    return picture(width, foot + (28 if x_name else 8), parts, title)


def side_by_side(drawings: Sequence[tuple[str, Html]], *, title: str, width: float = 1160.0, columns: int = 4) -> Html:
    """Several drawings, each with its name above it, as one."""
    across = min(len(drawings), columns)
    wide, parts, y, tall = width / max(across, 1), [], 0.0, 0.0
    for n, (name, drawing) in enumerate(drawings):
        if n and n % across == 0:
            y, tall = y + tall, 0.0
        x = n % across * wide
        box = [float(v) for v in drawing.split('viewBox="', 1)[1].split('"', 1)[0].split()]
        high = (wide - 12) * box[3] / box[2]
        placed = drawing.replace(
            "<svg ", f'<svg x="{x:.1f}" y="{y + 24:.1f}" width="{wide - 12:.1f}" height="{high:.1f}" ', 1
        )
        parts += [text(x + wide / 2, y + 14, name, "middle", "head"), Html(placed)]
        tall = max(tall, high + 34)
    return picture(width, y + tall, parts, title)


def scaled(values: np.ndarray, low: float | None, high: float | None, palette: Palette) -> np.ndarray:
    """Opacity 0 to 1, or -1 to 1 where values go both ways; NaN where there is nothing."""
    known = values[np.isfinite(values)]
    if palette == "both":
        most = float(np.abs(known).max()) if len(known) else 1.0
        return np.clip(values / (high or most or 1.0), -1.0, 1.0)
    bottom = low if low is not None else float(known.min()) if len(known) else 0.0
    peak = high if high is not None else float(known.max()) if len(known) else 1.0
    return np.clip((values - bottom) / (peak - bottom if peak > bottom else 1.0), 0.0, 1.0)


def pixels(strength: np.ndarray) -> np.ndarray:
    """``[n, m, 4]``: one colour each way, as opaque as the value is far from 0."""
    found = np.zeros((*strength.shape, 4), dtype=np.uint8)
    known = np.nan_to_num(strength)
    found[..., :3] = np.where((known >= 0)[..., None], RISING, FALLING)
    found[..., 3] = (np.abs(known) * 255).round()
    return found


def _names(
    rows: Sequence[str], columns: Sequence[str], left: float, top: float, across: float, down: float
) -> list[Html]:
    parts = []
    step = max(1, round(14 / down)) if down else 1
    for i, name in enumerate(rows):
        if i % step == 0:
            said_name = shortened(name, 18)
            parts.append(text(left - 6, top + (i + 0.5) * down + 4, said_name, "end", "tick"))
    most = max(2, int(across / 7))
    step = max(1, round(22 / across)) if across else 1
    for j, name in enumerate(columns):
        if j % step == 0:
            parts.append(text(left + (j + 0.5) * across, top - 8, shortened(name, max(most, 3)), "middle", "tick"))
    return parts


def _squares(
    values: np.ndarray,
    strength: np.ndarray,
    left: float,
    top: float,
    across: float,
    down: float,
    unit: Unit,
    rows: Sequence[str],
    columns: Sequence[str],
    marked: set[tuple[int, int]],
) -> list[Html]:
    parts = []
    written = across >= 40 and down >= 15
    gap = 1.0 if across > 8 else 0.0
    for (i, j), value in np.ndenumerate(values):
        v = strength[i, j]
        x, y = left + j * across, top + i * down
        kind = "none" if not np.isfinite(v) else "less" if v < 0 else "more"
        where = " · ".join(w for w in (rows[i] if rows else "", columns[j] if columns else "") if w)
        told = f"{where}\n{said(float(value), unit)}"
        parts.append(
            el(
                "rect",
                x=x,
                y=y,
                width=across - gap,
                height=down - gap,
                rx=2 if across > 12 else None,
                class_=f"square {kind}" + (" marked" if (i, j) in marked else ""),
                fill_opacity=f"{abs(v):.2f}" if kind != "none" else None,
                data_t=told,
            )
        )
        if written:
            ink = "value on" if abs(v) > 0.55 else "value"
            parts.append(text(x + (across - gap) / 2, y + down / 2 + 4, said(float(value), unit), "middle", ink))
    return parts
