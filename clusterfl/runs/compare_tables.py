"""A comparison as a table: aligned text, Markdown, CSV. A cell is a mean ± a standard deviation over seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from clusterfl.runs.compare import REACHED, figures
from clusterfl.scores import Metric, label, told

HEAD = ("method", "accuracy", "worst 5", "ARI", "clusters", "settled", "unseen", "MB up", "MB down", "seconds")
ATTACKED = ("method", "honest", "worst cluster", "ARI honest", "clusters", "rejected", "MB up", "MB down", "seconds")


def head(result: dict[str, Any]) -> list[str]:
    metric, reach = told(result), result["reach"]
    names = [label(metric.name) if name == "accuracy" else name for name in (ATTACKED if result["attack"] else HEAD)]
    if reach is None:
        return names
    return [*names, f"MB to {100 * reach:g} %" if metric.percent else f"MB to {label(metric.name)} {reach:g}"]


def cells(entry: dict[str, Any], result: dict[str, Any]) -> list[str]:
    line = _cells(entry, told(result), attacked=bool(result["attack"]))
    return line if result["reach"] is None else [*line, reached(entry, told(result).key(REACHED))]


def reached(entry: dict[str, Any], name: str = REACHED) -> str:
    """The traffic of the seeds that got there, and how many those are where it is not all."""
    got, there = entry[name], sum(run[name] is not None for run in entry["runs"])
    if got is None:
        return "-"
    some = "" if there == len(entry["runs"]) else f" ({there} of {len(entry['runs'])})"
    return f"{got['mean'] * 1e-6:.2f} ± {got['std'] * 1e-6:.2f}{some}"


def _cells(entry: dict[str, Any], metric: Metric, *, attacked: bool) -> list[str]:
    def score(figure: str) -> str:
        return pair(metric.key(figure), 100 if metric.percent else 1.0, 2 if metric.percent else 3)

    def pair(figure: str, scale: float = 1.0, digits: int = 2) -> str:
        got = entry[figure]
        return "-" if got is None else f"{got['mean'] * scale:.{digits}f} ± {got['std'] * scale:.{digits}f}"

    def mean(figure: str, scale: float = 1.0) -> str:
        return f"{entry[figure]['mean'] * scale:.2f}"

    if attacked:
        return [
            entry["method"],
            score("accuracy_honest"),
            score("accuracy_worst_cluster"),
            pair("ari_honest"),
            pair("clusters_found", digits=1),
            pair("rejected", digits=1),
            mean("bytes_up", 1e-6),
            mean("bytes_down", 1e-6),
            pair("seconds", digits=1),
        ]
    return [
        entry["method"],
        score("accuracy_mean"),
        score("accuracy_bottom5"),
        pair("ari"),
        pair("clusters_found", digits=1),
        pair("settled", digits=1),
        score("unseen_accuracy"),
        mean("bytes_up", 1e-6),
        mean("bytes_down", 1e-6),
        pair("seconds", digits=1),
    ]


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells in columns: the first to the left, the others to the right."""
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    columns = [[line[j].ljust(w) if j == 0 else line[j].rjust(w) for line in lines] for j, w in enumerate(widths)]
    return ["  ".join(cells) for cells in zip(*columns, strict=True)]


def as_text(result: dict[str, Any]) -> str:
    body = aligned([head(result), *(cells(entry, result) for entry in result["methods"])])
    rule = "-" * len(body[0])
    title = f"{result['data']}: {result['rounds']} rounds, mean ± standard deviation over {len(result['seeds'])} seeds"
    if result["attack"]:
        attack = result["attack"]
        title += (
            f"\n{attack['kind']} by {attack['share']:.0%} of the clients ({attack['where']}); figures of the others"
        )
    return "\n".join([title, "", body[0], rule, *body[1:]])


def as_markdown(result: dict[str, Any]) -> str:
    names = head(result)
    rows = [cells(entry, result) for entry in result["methods"]]
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def as_csv(result: dict[str, Any]) -> str:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = figures(result["reach"], told(result))
    out.writerow(["method", *(f"{figure}_{part}" for figure in names for part in ("mean", "std"))])
    for entry in result["methods"]:
        pairs = [entry[figure] or {"mean": "", "std": ""} for figure in names]
        out.writerow([entry["method"], *(pair[part] for pair in pairs for part in ("mean", "std"))])
    return text.getvalue()
