"""Markup, scales and numbers in words."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from clusterfl.report.svg import Html, Scale, Unit, el, png, said, scale_over


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = el("b", "<i>")
    assert el("p", inner, " & ", class_='a"b', data_t="<x>") == (
        '<p class="a&quot;b" data-t="&lt;x&gt;"><b>&lt;i&gt;</b> &amp; </p>'
    )
    assert el("p", None, x=1.0, y=2.25, z=None) == '<p x="1" y="2.2"></p>'
    assert isinstance(inner, Html) and inner.__html__() == "<b>&lt;i&gt;</b>"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.92857, "share", "92.9 %"),
        (1.0, "index", "1.00"),
        (1_000_000, "bytes", "1.00 MB"),
        (999, "bytes", "999 B"),
        (123_456_789, "bytes", "123 MB"),
        (0.25, "seconds", "250 ms"),
        (61.04, "seconds", "61.0 s"),
        (600, "seconds", "10.0 min"),
        (12345, "count", "12,345"),
        (1.5, "count", "1.5"),
        (0.01234, "number", "0.0123"),
        (None, "share", "–"),
        (float("nan"), "bytes", "–"),
    ],
)
def test_numbers_in_words(value: float | None, unit: Unit, text: str) -> None:
    assert said(value, unit) == text


def test_ticks_are_round_and_inside() -> None:
    assert Scale(0.0, 1.0, 0, 100).ticks(5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert Scale(0.13, 0.91, 0, 100).ticks(4) == [0.2, 0.4, 0.6, 0.8]
    assert Scale(0.0, 1.0, 10.0, 20.0)(0.25) == 12.5


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [float("nan")], [-3.0, 7.0]])
def test_a_scale_holds_its_values(values: list[float]) -> None:
    scale = scale_over(values, 0.0, 100.0)
    assert scale.high > scale.low
    assert all(0 <= scale(v) <= 100 for v in values if v == v)


def test_a_picture_of_pixels_is_a_png() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    address = png(pixels)
    assert address.startswith("data:image/png;base64,")
    opened = image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert (np.asarray(opened) == pixels).all()
