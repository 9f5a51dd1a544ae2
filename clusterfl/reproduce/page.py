"""docs/reproduction.md, made from the results on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterfl.config.tables import Table
from clusterfl.reproduce.compare import MARKS, Comparison, compare, in_words, spreads_in_words
from clusterfl.reproduce.count import Count, count, printed, why_missing
from clusterfl.reproduce.draw import shown
from clusterfl.reproduce.letter import differences, reductions, same_at_both_scales
from clusterfl.reproduce.moves import courses
from clusterfl.reproduce.spec import COUNTED, METRICS, Experiment
from clusterfl.reproduce.store import Results

HEAD = """# Reproduction

Our results beside the papers'. This page is written by `clusterfl reproduce`; [reproducing](reproducing.md) says
how to run it, what the scales are and how to read the tables.

A cell is *ours / the paper's*: the mean over seeds ± its standard deviation between seeds; what a paper's ± is of is in
the notes. ✓: ours is within 1.5 points of the paper's (ARI: 0.05). ▲: ours is higher, ▽: lower; either way
the paper is not confirmed there. ∅: a run has no such number. At `full` scale sizes are the paper's as far as it gives
them; `own` is a small run of ours that a drawing is made of. In which keys a method is not its paper's letter is listed
below each table. At `laptop` scale all is smaller, by how much is listed too, and figures can only show the order of
methods: how alike it is to the paper's is said below each such table (1: the same, 0: unrelated, -1: reversed).
"""


def page(experiments: Sequence[Experiment], drawings: Path | None = None) -> str:
    """docs/reproduction.md: the count, a summary, then every table that has results and every figure that is drawn.

    ``drawings``: the folder of drawn figures; a page that lies elsewhere than beside it has none.
    """
    results = {folder: Results(folder) for folder in {e.folder for e in experiments}}
    compared = [
        [c for scale in scales_of(e) if (c := compare(e, scale, results[e.folder])).results] for e in experiments
    ]
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


def scales_of(e: Experiment) -> tuple[str, ...]:
    """The scales that count; one where they are the same run."""
    return COUNTED[:1] if same_at_both_scales(e) else COUNTED


def headline(c: Count) -> Iterator[str]:
    """The count in words, scale by scale."""
    yield f"**Of {c.printed} figures in the papers' tables {c.run} have been run.**\n"
    lines = []
    if c.full:
        lines.append(f"- at full scale {in_words(c.full)}\n")
        lines.append(f"  - of these to the letter of their method's paper {in_words(c.letter)}\n")
        lines.append(f"  - with settings of this library, listed below each table, {in_words(c.full - c.letter)}\n")
    if c.laptop:
        lines.append(f"- at laptop scale alone {in_words(c.laptop)}\n")
    if c.missing:
        reasons = ", ".join(f"{n} for {why}" for why, n in sorted(c.missing.items(), key=lambda item: -item[1]))
        lines.append(f"- {c.missing.total()} not run: {reasons}\n")
    if c.readings:
        lines.append(f"- beside these, at either scale, figures in another reading: {in_words(c.readings)}\n")
        lines.append(f"  - of these to the letter (the paper's own start, say) {in_words(c.literal)}\n")
        lines.append(f"  - other settings, or another split of the data, {in_words(c.readings - c.literal)}\n")
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
                "own" if scales_of(e) != COUNTED else c.scale,
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
    whole = count([e], found)
    if found and (lacking := whole.printed - whole.full.total()):
        nowhere = f", {n} of them at no scale, for {why_missing(e)}" if (n := whole.missing.total()) else ""
        parts.append(f"Not run at full scale, for {e.not_run}: {lacking} of {whole.printed} figures{nowhere}.\n")
    for c in found:
        scale = "Of a size of its own" if scales_of(e) != COUNTED else f"{c.scale.capitalize()} scale"
        parts += [f"{scale}: {c.count}.\n", markdown(c.grid())]
        if c.unread:
            parts.append(f"Other readings, not run at this scale: {', '.join(c.unread)}.\n")
        parts.append(f"```\n{c.command}\n```\n")
        parts += _beside(c)
    if drawn(e, drawings):
        source = f" from the results of `{e.uses}`" if e.uses else ""
        source += f" at {shows[0]['scale']} scale" if shows and scales_of(e) == COUNTED else ""
        parts.append(f"![{e.title}](figures/{picture_name(e)})\n\nDrawn by `clusterfl reproduce {e.name}`{source}.\n")
    elif not e.rows:
        parts.append("Not drawn.\n")
    if told := "".join(f"- {line}\n" for line in _not_the_letter(e, found)):
        parts += ["Not the paper's letter:\n", told]
    if e.notes:
        parts.append("Notes:\n")
        parts.append("".join(f"- {note}\n" for note in e.notes))
    return "\n".join(parts)


def _beside(c: Comparison) -> Iterator[str]:
    """What is said below a table: spreads, the order of methods, what is smaller, how clusters came about."""
    if spreads := spreads_in_words(c):
        yield f"{spreads}\n"
    if c.scale == "laptop":
        if orders := c.orders:
            alike = ", ".join(f"{_column(c, s, m)} {rho:.2f}" for (s, m), rho in orders.items())
            yield f"Order of methods, as rank correlation with the paper's: {alike}.\n"
        if smaller := "".join(f"- {line}\n" for line in reductions(c.experiment, c.places)):
            yield f"What laptop scale changes (full scale's in brackets):\n\n{smaller}"
    if "settled" in c.experiment.metrics and (moves := "".join(f"- {line}\n" for line in courses(c))):
        yield f"How clusters came about, run by run:\n\n{moves}"


def _not_the_letter(e: Experiment, found: Sequence[Comparison]) -> Iterator[str]:
    """A line for each row that was run and is not the paper's letter; one for each scale where these differ."""
    for row in e.rows:
        run = [c.scale for c in found if row.name in {name for name, _ in c.places}]
        told = {scale: differences(e, row, scale) for scale in run}
        same = len({tuple(d) for d in told.values()}) == 1
        for scale, d in list(told.items())[: 1 if same else None]:
            if d:
                yield f"{row.name}{'' if same else f', at {scale} scale'}: {', '.join(d)}"


def _column(c: Comparison, setting: str, metric: str) -> str:
    """A column's name, without its setting where there is but one."""
    label = METRICS[metric].label
    return label if len(c.experiment.settings) == 1 else f"{setting}: {label}"


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
