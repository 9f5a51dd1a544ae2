"""Markup that cannot be broken by what it shows, and the axes of a picture: scales, ticks, numbers in words.

Pictures are SVG with colours from the page's style sheet: they follow its light and dark side, print, and need no
library in the browser.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

COLOURS = 10  # of the style sheet: .c0 to .c9


class Html(str):
    """Text that is markup already: templates and :func:`el` leave it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element. Children that are not :class:`Html` are text; ``class_`` is class, ``data_t`` is data-t."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(number(value))}"'
        for name, value in attributes.items()
        if value is not None and value != ""
    )
    inner = "".join(c if isinstance(c, Html) else html.escape(str(c)) for c in children if c is not None)
    return Html(f"<{tag}{written}>{inner}</{tag}>")


def number(value: object) -> str:
    """Coordinates with one decimal, the rest as it is."""
    if isinstance(value, float | np.floating):
        return f"{float(value):.1f}".removesuffix(".0")
    return str(value)


def group(parts: Sequence[Html], **attributes: object) -> Html:
    return el("g", Html("".join(parts)), **attributes)


def picture(width: float, height: float, parts: Sequence[Html], title: str) -> Html:
    """A whole drawing that scales with its place; ``title`` is read aloud."""
    return el(
        "svg",
        Html("".join(parts)),
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=title,
        xmlns="http://www.w3.org/2000/svg",
    )


def text(x: float, y: float, words: object, anchor: str = "start", class_: str = "", **more: object) -> Html:
    return el("text", words, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Html:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def colour(k: int) -> str:
    return f"c{k % COLOURS}"


def shortened(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


# -- numbers in words ----------------------------------------------------------------------------------

Unit = Literal["share", "index", "number", "count", "bytes", "seconds"]


def said(value: float | None, unit: Unit) -> str:
    """A figure as the page writes it; the same everywhere."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "index":
        return f"{value:.2f}"
    if unit == "bytes":
        return in_steps(value, 1000.0, ("B", "kB", "MB", "GB", "TB"))
    if unit == "seconds":
        return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
    if unit == "count":
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return "0" if value == 0 else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def in_steps(value: float, step: float, units: Sequence[str], digits: str = "#.3g") -> str:
    at = 0
    while value >= step and at + 1 < len(units):
        value, at = value / step, at + 1
    return f"{value:.0f} {units[at]}" if at == 0 or value >= 100 else f"{value:{digits}} {units[at]}"


# -- scales --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """From values to places on the page."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside the scale."""
        rough = (self.high - self.low) / max(about, 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scale_over(
    values: Sequence[float] | np.ndarray, start: float, end: float, *, zero: bool = False, most: float | None = None
) -> Scale:
    """A scale that holds all finite values with some air; ``zero``: from 0 on; ``most``: never above it."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if zero:
        low = min(low, 0.0)
    if high - low < 1e-12:
        low, high = low - (0 if zero and low == 0 else abs(low) * 0.1 + 0.05), high + abs(high) * 0.1 + 0.05
    air = 0.06 * (high - low)
    low, high = (low if zero and low == 0 else low - air), high + air
    if most is not None:
        high = min(high, most) if float(np.max(known, initial=0.0)) <= most else high
    if not zero and known.size and known.min() >= 0:
        low = max(low, 0.0)
    return Scale(low, high, start, end)


# -- pictures made of many small squares ---------------------------------------------------------------


def png(pixels: np.ndarray) -> str:
    """``[height, width, 4]`` uint8, red to opacity, as the address of an image that is part of the page."""
    height, width, _ = pixels.shape
    raw = b"".join(b"\x00" + pixels[i].tobytes() for i in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode()
