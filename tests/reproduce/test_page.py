"""The page of all comparisons."""

from __future__ import annotations

import re
from pathlib import Path

from clusterfl.reproduce.page import page, page_path
from clusterfl.reproduce.spec import Experiment, load_all
from clusterfl.reproduce.store import write_result
from tests.reproduce.tiny import result


def test_page(folder: Path, tiny: Experiment) -> None:
    for cell in tiny.cells("full", [0]):
        write_result(cell, result(cell, accuracy_mean=0.5, ari=0.25))
    laptop = next(c for c in tiny.cells("laptop", [0]))
    write_result(laptop, result(laptop, accuracy_mean=0.01, ari=0.0))
    (folder / "some" / "notes.md").write_text("The order of methods is the paper's.\n")
    (folder / "some" / "fig2.toml").write_text(
        'citation = "x"\ntitle = "A drawing"\nkind = "figure"\nuses = "some.table1"\nreport = "a.b:draw"\n'
    )
    text = page(load_all(folder))
    assert "**Of 3 figures in the papers' tables 3 have been run.**" in text
    assert "- at full scale 3 run: 2 above, 1 below\n" in text and "laptop scale alone" not in text
    assert "| `some.table1` | 3 | 3 | – | 2 | 1 | – | – | – | – | – | – | – |" in text
    assert "| Global | 50.00 / 10 ▲ | 25.00" not in text  # ARI is 0.25, not 25 points
    assert "| Global | 50.00 / 10 ▲ | 0.25 / – | 50.00 / 99.9 ▽ | 0.25 / – |" in text
    assert "| IFCA+2 |  |  | 50.00 / – | 0.25 / -1 ▲ |" in text
    assert "- IFCA+2: start = kmeans-local (paper: independent)" in text
    assert "clusterfl reproduce some.table1 --scale full --seeds 0" in text
    assert "- The step size is not given." in text and "The order of methods is the paper's." in text
    assert "Drawn" not in text and "Not drawn." in text
    assert page(load_all(folder)) == text  # nothing in it changes by itself
    figures = folder.parent / "docs" / "figures"
    figures.mkdir()
    (figures / "some-fig2.png").write_bytes(b"")
    again = page(load_all(folder), figures)
    assert "![A drawing](figures/some-fig2.png)" in again
    assert "from the results of `some.table1` at full scale." in again
    assert page_path(folder) == folder.parent / "docs" / "reproduction.md"


def test_the_course_of_clusters_is_told_seed_by_seed(folder: Path) -> None:
    file = folder / "some" / "table1.toml"
    file.write_text(file.read_text().replace('"ari"]', '"ari", "settled"]'))
    e = load_all(folder)[0]
    moved = [[[1, 0.5], [7, 0.25]], []]
    for seed in (1, 0):
        cell = next(c for c in e.cells("full", [seed]) if c.row.name == "IFCA+2")
        course = {"ari_curve": [[0, -0.001], [2, 0.4 + seed]], "moved": moved[seed]}
        write_result(cell, {**result(cell, accuracy_mean=0.5), **course})
    assert (
        "- IFCA+2, R=1.0: ARI 0.00, 0.00 at the start, 0.40, 1.40 at the end; rounds in which clients moved: 2, 0; "
        "the last: 7, –; at once at most 50 %, – of them\n"
    ) in page([e])


def test_the_page_says_that_something_is_drawn_where_something_is() -> None:
    """And nowhere else: a figure that waits for its runs is not claimed."""
    root = Path(__file__).parent.parent.parent / "docs"
    for section in re.split(r"^##+ ", (root / "reproduction.md").read_text(encoding="utf-8"), flags=re.M)[1:]:
        pictures = re.findall(r"!\[.*\]\((.*)\)", section)
        assert all((root / name).exists() for name in pictures)
        assert bool(pictures) == ("\nDrawn by `clusterfl reproduce" in section), section[:60]
        assert pictures or "rawn from" not in section, section[:60]
