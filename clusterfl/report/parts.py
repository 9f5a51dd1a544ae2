"""What a page is made of: tiles, figures, tables, sections; the template knows these and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clusterfl.report.svg import Html, Unit, said


@dataclass(frozen=True)
class Tile:
    """A headline figure: ``value`` is the summary's own number, ``key`` its name there."""

    key: str
    label: str
    value: float | None
    unit: Unit
    note: str = ""

    @property
    def text(self) -> str:
        return said(self.value, self.unit)

    @property
    def exact(self) -> str:
        return json.dumps(self.value)


@dataclass(frozen=True)
class Figure:
    title: str
    drawing: Html
    note: str = ""
    wide: bool = False


Kind = Literal["text", "share", "index", "number", "count", "bytes", "seconds", "cluster"]


@dataclass(frozen=True)
class Column:
    label: str
    kind: Kind = "text"
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of plain values, or of ``{"v": value, "s": as it is shown, "c": class}``; the page sorts and searches."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    name: str
    sort: int = 0
    falling: bool = False
    tags: Sequence[dict[str, str]] = ()  # of each row, for the filters
    search: bool = True

    @property
    def data(self) -> Html:
        """For a script element: no text of a user can end it."""
        columns = [{"label": c.label, "kind": c.kind, "hint": c.hint} for c in self.columns]
        spec = {"columns": columns, "rows": self.rows, "sort": self.sort, "falling": self.falling, "tags": self.tags}
        return safe_json(spec)


def safe_json(value: Any) -> Html:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Html(text)


@dataclass(frozen=True)
class Section:
    title: str
    figures: Sequence[Figure] = ()
    table: Table | None = None
    lead: str = ""
    below: Html | None = None

    @property
    def id(self) -> str:
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


@dataclass(frozen=True)
class Filter:
    """Chips of one kind: what is off is hidden."""

    name: str  # method, seed, scenario
    values: Sequence[str]


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    badges: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    filters: Sequence[Filter] = field(default=())
    live: int | None = None  # the round that it shows, where it is served while the run goes on
    made_by: str = ""

    @property
    def columns(self) -> int:
        """Of tiles: rows of at most seven, as even as they can be."""
        n = max(len(self.tiles), 1)
        return -(-n // -(-n // 7))
