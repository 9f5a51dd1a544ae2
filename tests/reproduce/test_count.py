"""The count of the papers' figures, recounted from the files by other means."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from clusterfl.reproduce.compare import compare
from clusterfl.reproduce.count import count, printed
from clusterfl.reproduce.letter import differences
from clusterfl.reproduce.page import headline
from clusterfl.reproduce.spec import COUNTED, Experiment, load, load_all
from clusterfl.reproduce.store import Results, write_result
from tests.reproduce.tiny import TINY, result

ROOT = Path(__file__).parent.parent.parent
HERE = ROOT / "experiments"
APART = {"bytes_up", "bytes_down", "accuracy_std", "clusters_found", "settled"}

# as the tables are printed: rows x columns of figures
TABLES = {
    "md-icfl": 3 * (7 * 2 + 3 * 2) + 2 * (13 + 3 * 2) + 12,  # tables 1-3, 4-5 (no Local at R = 0.5), 6
    "feddsmic": 13 * 8 * 2 + 5 * 4,
    "fcca": 12 * 10,
    "fesem": 2 * 14 * 4,
    "awcfl": 2 * 2 * 5 + 2 * (1 + 3 * 2),
}


def test_the_papers_print_604_figures() -> None:
    found = Counter(name.partition(".")[0] for e in load_all(HERE) for name, *_ in printed(e))
    assert dict(found) == TABLES and sum(TABLES.values()) == 604


def recounted(held: dict[Path, Results]) -> tuple[Counter[str], Counter[str]]:
    """What was run at full scale, and at laptop scale alone, straight from the TOML files and the results."""
    full, laptop = Counter[str](), Counter[str]()
    for file in sorted(HERE.glob("*/*.toml")):
        text = tomllib.loads(file.read_text(encoding="utf-8"))
        experiment, results = load(file), held[file.parent]
        places: dict[tuple[str, str, str], list[Any]] = {}
        for scale in COUNTED if experiment.kind == "table" else ():
            for one in experiment.cells(scale, results.seeds):
                if found := results.of(one):
                    places.setdefault((scale, one.row.name, one.setting.name), []).append(found["metrics"])
        for cell in experiment.cells("full", [0]):
            row = next(r for r in text["rows"] if r["name"] == cell.row.name)
            setting = next(s for s in text["settings"] if s["name"] == cell.setting.name)
            if "of" in row or "of" in setting or "paper" not in row:
                continue
            runs = {scale: places.get((scale, cell.row.name, cell.setting.name), []) for scale in COUNTED}
            for metric, paper in zip(text["metrics"], row["paper"][cell.setting.name], strict=False):
                if paper == "-" or metric in APART:
                    continue
                at = next((s for s in runs if any(metric in m for m in runs[s])), None)
                if at is None:
                    continue
                ours = [m[metric] for m in runs[at] if metric in m]
                unit, tolerance = (1.0, 0.05) if metric in ("ari", "nmi") else (100.0, 1.5)
                if None in ours:
                    verdict = "void"
                else:
                    off = unit * sum(ours) / len(ours) - paper
                    verdict = "within" if abs(off) <= tolerance + 1e-9 else "above" if off > 0 else "below"
                (full if at == "full" else laptop)[verdict] += 1
    return full, laptop


def test_the_page_counts_what_the_files_hold() -> None:
    experiments = load_all(HERE)
    held = {folder: Results(folder) for folder in {e.folder for e in experiments}}
    tables = [e for e in experiments if printed(e)]
    compared = [c for e in tables for scale in COUNTED if (c := compare(e, scale, held[e.folder])).results]
    whole = count(experiments, compared)
    assert (whole.full, whole.laptop) == recounted(held)
    assert whole.run + whole.missing.total() == whole.printed == 604
    said = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for line in headline(whole):
        assert line in said, "docs/reproduction.md is older than the results: clusterfl reproduce --page-only"


def test_committed_results_are_all_recognised() -> None:
    """A result whose config means something else by now would silently leave the count."""
    for folder in sorted(HERE.glob("*/results")):
        held = Results(folder.parent)
        assert held.files.keys() == {p.name for p in folder.glob("*.json")}
        known = {json.loads(p.read_text())["row"] for p in folder.glob("*.json")}
        rows = {row.name for e in load_all(HERE) if e.folder == folder.parent for row in e.rows}
        assert known <= rows


def test_another_reading_has_the_same_figures_and_is_counted_apart(folder: Path) -> None:
    more = """
[[rows]]
name = "IFCA+2 (paper's start)"
of = "IFCA+2"
method = { name = "ifca", preset = "paper", k = 2 }

[[settings]]
name = "R=1.0, again"
of = "R=1.0"
"""
    (folder / "some" / "table1.toml").write_text(TINY + more)
    e = load(folder / "some" / "table1.toml")
    assert len(printed(e)) == 3
    for cell in e.cells("full", [0]):
        write_result(cell, result(cell, accuracy_mean=0.5, ari=-1.0))
    c = compare(e, "full")
    assert dict(c.verdicts) == {"above": 1, "below": 1, "within": 1} and c.readings.total() == 4
    whole = count([e], [c])
    assert whole.printed == 3 and whole.full == c.verdicts and whole.readings == c.readings
    assert differences(e, e.rows[1]) == ["start = kmeans-local (paper: independent)"]
    assert differences(e, e.rows[2]) == []


def test_what_was_not_run_says_why(tiny: Experiment) -> None:
    whole = count([tiny], [])
    assert whole.run == 0 and dict(whole.missing) == {"time": 3}


def test_beside_every_row_that_is_not_the_papers_letter_stands_one_that_is() -> None:
    for e in load_all(HERE):
        for row in e.rows:
            if row.of is None and differences(e, row):
                readings = [other for other in e.rows if other.of == row.name or e.kind == "figure"]
                alike = [r for r in readings if r.method["name"] == row.method["name"]]
                assert any(not differences(e, r) for r in alike), f"{e.name}: {row.name}"
