"""What epsilon covers, method by method, as their procedures declare it: the table of docs/reliability.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterfl.engines.wrappers.coverage import covered_by
from clusterfl.method import Method, exchanged
from clusterfl.methods import METHODS


@dataclass(frozen=True)
class Row:
    """A method under ``[privacy]``: fields as "procedure.field"."""

    method: str
    blurred: list[str]
    given: list[str]
    uncovered: list[str]
    sums: str


def row(method: Method[Any]) -> Row:
    """With this method's settings; a field that some settings leave out (n with weights = "uniform") counts."""
    blurred, given, uncovered = [], [], []
    for label, declared in exchanged(method).items():
        fields, covers = covered_by(label, declared)
        blurred += [f"{label}.{field}" for field in fields]
        given += [what.replace(": ", ".") for what in covers.given]
        uncovered += [what.replace(": ", ".") for what in covers.uncovered]
    sums = "yes" if method.only_sums() else "with other settings" if method.sums else "no"
    return Row(method.name, blurred, given, uncovered, sums)


def table() -> str:
    """Every method with its default settings, in Markdown."""
    lines = [
        "| method | cut and blurred | epsilon is given | not covered | only sums needed |",
        "|---|---|---|---|---|",
    ]
    for name, cls in METHODS.items():
        found = row(cls())
        cells = [", ".join(f"`{what}`" for what in w) or "–" for w in (found.blurred, found.given, found.uncovered)]
        lines.append(f"| {name} | {' | '.join(cells)} | {found.sums} |")
    return "\n".join(lines)
