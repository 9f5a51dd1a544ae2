"""docs/reproduction.md, made from the results on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterfl.config.tables import Table
from clusterfl.reproduce.compare import MARKS, Comparison, compare, in_words
from clusterfl.reproduce.count import Count, count, differences, printed
from clusterfl.reproduce.draw import shown
from clusterfl.reproduce.moves import courses
from clusterfl.reproduce.spec import COUNTED, METRICS, Experiment
from clusterfl.reproduce.store import Results

HEAD = """# Reproduction

Our results beside the papers'. This page is written by `clusterfl reproduce`; [reproducing](reproducing.md) says
how to run it, what the scales are and how to read the tables.

A cell is *ours / the paper's*: the mean over seeds ± its standard deviation between seeds; what a paper's ± is of is in
the notes. ✓: ours is within 1.5 points of the paper's (ARI: 0.05). ▲: ours is higher, ▽: lower; either way
the paper is not confirmed there. ∅: a run has no such number. At `full` scale sizes are the paper's, and what else
differs is listed below each table; at `laptop` scale all is smaller, and figures can only show the order of methods:
how alike it is to the paper's is said below each such table (1: the same, 0: unrelated, -1: reversed).
"""


def page(experiments: Sequence[Experiment], drawings: Path | None = None) -> str:
    """docs/reproduction.md: the count, a summary, then every table that has results and every figure that is drawn.

    ``drawings``: the folder of drawn figures; a page that lies elsewhere than beside it has none.
    """
    results = {folder: Results(folder) for folder in {e.folder for e in experiments}}
    compared = [[c for scale in COUNTED if (c := compare(e, scale, results[e.folder])).results] for e in experiments]
    whole = count(experiments, [c for found in compared for c in found])
    parts = [HEAD, *headline(whole), _by_paper(experiments, compared), _summary(experiments, compared, drawings)]
    for folder in dict.fromkeys(e.folder for e in experiments):
        mine = [(e, found) for e, found in zip(experiments, compared, strict=True) if e.folder == folder]
        parts.append(f"## {mine[0][0].citation}\n")
        notes = folder / "notes.md"
        if notes.exists():
            parts.append(notes.read_text(encoding="utf-8").strip() + "\n")
        for e, found in mine:
            if found or not e.rows or drawn(e, drawings):
                shows = shown(e, experiments, results[e.folder]) if drawn(e, drawings) and (e.uses or e.rows) else []
                parts.append(_section(e, found, shows, drawings))
    return "\n".join(parts)


def headline(c: Count) -> Iterator[str]:
    """The count in words, scale by scale."""
    yield f"**Of {c.printed} figures in the papers' tables {c.run} have been run.**\n"
    lines = []
    for scale, found in (("at full scale", c.full), ("at laptop scale alone", c.laptop)):
        if found:
            lines.append(f"- {scale} {in_words(found)}\n")
    if c.missing:
        reasons = ", ".join(f"{n} for {why}" for why, n in sorted(c.missing.items(), key=lambda item: -item[1]))
        lines.append(f"- {c.missing.total()} not run: {reasons}\n")
    if c.readings:
        lines.append(
            f"- beside these, figures in another reading (the paper's own start, say): {in_words(c.readings)}\n"
        )
    yield "".join(lines)


def _by_paper(experiments: Sequence[Experiment], compared: Sequence[Sequence[Comparison]]) -> str:
    """The count of each table."""
    lines = [["Table", "In the paper", "Run, full", *MARKS.values(), "Run, laptop alone", *MARKS.values(), "Not run"]]
    total = Counter[int]()
    for e, found in zip(experiments, compared, strict=True):
        c = count([e], found)
        if not c.printed:
            continue
        numbers = [c.printed]
        for verdicts in (c.full, c.laptop):
            numbers += [verdicts.total(), *(verdicts[v] for v in MARKS)]
        numbers.append(c.missing.total())
        total.update(dict(enumerate(numbers)))
        lines.append([f"`{e.name}`", *(str(n) if n else "–" for n in numbers)])
    lines.append(["**all**", *(f"**{total[j]}**" for j in range(len(lines[0]) - 1))])
    return markdown(lines)


def _summary(experiments: Sequence[Experiment], compared: Sequence[Sequence[Comparison]], drawings: Path | None) -> str:
    lines = [["Experiment", "What", "Scale", "Figures", "Runs", "Hours"]]
    for e, found in zip(experiments, compared, strict=True):
        here = drawn(e, drawings)
        what = f"[{e.title}](#{_anchor(e)})" if found or not e.rows or here else e.title
        state = "drawn" if here else "not drawn" if not e.rows else "not run"
        lines += [
            [
                f"`{e.name}`",
                what,
                c.scale,
                str(c.verdicts.total() or "–"),
                str(len(c.results)),
                f"{c.seconds / 3600:.1f}",
            ]
            for c in found
        ] or [[f"`{e.name}`", what, "–", state if not printed(e) else f"not run ({e.not_run})", "–", "–"]]
    return markdown(lines, left=3)


def _section(e: Experiment, found: Sequence[Comparison], shows: Sequence[Table], drawings: Path | None) -> str:
    """``shows``: the results that a figure is of."""
    parts = [f"### {e.table}: {e.title}\n"]
    for c in found:
        parts += [f"{c.scale.capitalize()} scale: {c.count}.\n", markdown(c.grid())]
        parts.append(f"```\n{c.command}\n```\n")
        if c.scale == "laptop" and (orders := c.orders):
            alike = ", ".join(f"{_column(c, s, m)} {rho:.2f}" for (s, m), rho in orders.items())
            parts.append(f"Order of methods, as rank correlation with the paper's: {alike}.\n")
        if "settled" in e.metrics and (moves := "".join(f"- {line}\n" for line in courses(c))):
            parts.append(f"How clusters came about, run by run:\n\n{moves}")
    if drawn(e, drawings):
        source = f" from the results of `{e.uses}`" if e.uses else ""
        source += f" at {shows[0]['scale']} scale" if shows else ""
        parts.append(f"![{e.title}](figures/{picture_name(e)})\n\nDrawn by `clusterfl reproduce {e.name}`{source}.\n")
    elif not e.rows:
        parts.append("Not drawn.\n")
    told = [(row.name, d) for row in e.rows if found and (d := differences(e, row))]
    if told:
        parts.append("Not the paper's letter:\n")
        parts.append("".join(f"- {name}: {', '.join(d)}\n" for name, d in told))
    if e.notes:
        parts.append("".join(f"- {note}\n" for note in e.notes))
    return "\n".join(parts)


def _column(c: Comparison, setting: str, metric: str) -> str:
    """A column's name, without its setting where there is but one."""
    label = METRICS[metric].label
    return label if len({s for s, _ in c.columns}) == 1 else f"{setting}: {label}"


def picture_name(e: Experiment) -> str:
    return f"{e.paper}-{e.table}.png"


def drawn(e: Experiment, drawings: Path | None) -> bool:
    return drawings is not None and (drawings / picture_name(e)).exists()


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
