"""docs/reproduction.md, made from the results on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterfl.reproduce.compare import Comparison, compare
from clusterfl.reproduce.spec import COUNTED, Experiment
from clusterfl.reproduce.store import Results

HEAD = """# Reproduction

Our results beside the papers'. This page is written by `clusterfl reproduce`; [reproducing](reproducing.md) says
how to run it, what the scales are and how to read the tables.

A cell is *ours / the paper's*: the mean over seeds ± its standard deviation between seeds. ✓ marks a figure that
is reproduced: ours is at least the paper's minus 1.5 points (ARI: minus 0.05). At `full` scale the config is the
paper's; at `laptop` scale it is smaller, and its figures can only show the order of methods.
"""


def page(experiments: Sequence[Experiment]) -> str:
    """docs/reproduction.md: a summary, then every table that has results and every drawing."""
    results = {e.folder: Results(e.folder) for e in experiments}
    compared = [[c for scale in COUNTED if (c := compare(e, scale, results[e.folder])).results] for e in experiments]
    parts = [HEAD, *_totals([c for found in compared for c in found]), _summary(experiments, compared)]
    for folder in dict.fromkeys(e.folder for e in experiments):
        mine = [(e, found) for e, found in zip(experiments, compared, strict=True) if e.folder == folder]
        parts.append(f"## {mine[0][0].citation}\n")
        notes = folder / "notes.md"
        if notes.exists():
            parts.append(notes.read_text(encoding="utf-8").strip() + "\n")
        parts += [_section(e, found) for e, found in mine if found or not e.rows]
    return "\n".join(parts)


def _totals(compared: Sequence[Comparison]) -> Iterator[str]:
    for scale in COUNTED:
        some = [c for c in compared if c.scale == scale and c.compared]
        if some:
            done, of = sum(c.reproduced for c in some), sum(c.compared for c in some)
            yield f"**At {scale} scale {done} of {of} figures are reproduced.**\n"


def _summary(experiments: Sequence[Experiment], compared: Sequence[Sequence[Comparison]]) -> str:
    lines = [["Experiment", "What", "Scale", "Reproduced", "In the paper", "Runs", "Hours"]]
    for e, found in zip(experiments, compared, strict=True):
        what = f"[{e.title}](#{_anchor(e)})" if found or not e.rows else e.title
        lines += [
            [
                f"`{e.name}`",
                what,
                c.scale,
                f"{c.reproduced} of {c.compared}" if c.compared else "–",
                str(_printed(e)),
                str(len(c.results)),
                f"{c.seconds / 3600:.1f}",
            ]
            for c in found
        ] or [[f"`{e.name}`", what, "–", "not run" if e.rows else "a drawing", str(_printed(e)), "–", "–"]]
    return markdown(lines, left=3)


def _printed(e: Experiment) -> int:
    return sum(len(row.figures(setting.name, e.metrics)) for row in e.rows for setting in e.settings)


def _section(e: Experiment, found: Sequence[Comparison]) -> str:
    parts = [f"### {e.table}: {e.title}\n"]
    for c in found:
        parts += [f"{c.scale.capitalize()} scale: {c.count}.\n", markdown(c.grid())]
        parts.append(f"```\n{c.command}\n```\n")
    if e.uses:
        parts.append(f"Drawn from the results of `{e.uses}`.\n")
    if e.report:
        parts.append(f"Drawn by `{e.report}`.\n")
    if e.notes:
        parts.append("".join(f"- {note}\n" for note in e.notes))
    return "\n".join(parts)


def _anchor(e: Experiment) -> str:
    """The heading's name in GitHub's Markdown."""
    return re.sub(r"[^\w\- ]", "", f"{e.table}: {e.title}".casefold()).replace(" ", "-")


def markdown(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table, its first columns to the left and numbers to the right."""
    rule = ["---" if j < left else "---:" for j in range(len(lines[0]))]
    return "".join("| " + " | ".join(line) + " |\n" for line in [lines[0], rule, *lines[1:]])


def page_path(folder: Path) -> Path:
    """docs/ beside the experiments, or their own folder where there is none."""
    docs = folder.resolve().parent / "docs"
    return (docs if docs.is_dir() else folder) / "reproduction.md"
