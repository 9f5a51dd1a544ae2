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


def test_a_table_says_what_was_not_run_at_full_scale_and_why(folder: Path, tiny: Experiment) -> None:
    """A table too large for this machine is shown at laptop scale, and says so."""
    file = folder / "some" / "table1.toml"
    file.write_text(file.read_text().replace("metrics =", 'not_run = "data and size"\nmetrics ='))
    e = load_all(folder)[0]
    cell = next(iter(e.cells("laptop", [0])))
    write_result(cell, result(cell, accuracy_mean=0.5))
    assert "Not run at full scale, for data and size: 3 of 3 figures, 2 of them at no scale, for time.\n" in page([e])
    for cell in e.cells("full", [0]):
        write_result(cell, result(cell, accuracy_mean=0.5, ari=0.5))
    assert "Not run at full scale" not in page([e])


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


def test_the_page_says_what_laptop_scale_changes_and_what_of_the_paper_a_method_is_not(folder: Path) -> None:
    """At both scales, of the method that another is around too, and of rows that were run."""
    file = folder / "some" / "table1.toml"
    text = file.read_text()
    text = text.replace('{ name = "ifca", k = 2 }', '{ name = "awcfl", base = { name = "ifca", k = 2 } }')
    text += 'scale.laptop.method = { mix_for = "both" }\n'
    file.write_text(text.replace("[base]", '[letter]\nawcfl = { base = { name = "ifca" } }\n[base]', 1))
    e = load_all(folder)[0]
    assert "Not the paper's letter" not in page([e])
    for scale in ("full", "laptop"):
        for cell in e.cells(scale, [0]):
            write_result(cell, result(cell, accuracy_mean=0.5, ari=0.5))
    said = page([e])
    start = "base.start = kmeans-local (paper: independent)"
    assert f"- IFCA+2, at full scale: mix_for = serve (paper: both), {start}\n" in said
    assert f"- IFCA+2, at laptop scale: {start}\n" in said
    assert "- rounds = 1 (2)\n- R=1.0: data.samples = 8 (12)\n- IFCA+2: method.mix_for = both (serve)\n" in said


def test_a_drawing_of_one_size_is_shown_once(folder: Path) -> None:
    file = folder / "some" / "table1.toml"
    text = (
        file.read_text().replace("[scale.laptop]\nrounds = 1\n", "").replace("scale.laptop.data = { samples = 8 }", "")
    )
    file.write_text(text)
    e = load_all(folder)[0]
    for cell in e.cells("full", [0]):
        write_result(cell, result(cell, accuracy_mean=0.5, ari=0.5))
    said = page([e])
    assert "Of a size of its own: 3 run" in said and "Laptop scale" not in said and "| own | 3 | 3 |" in said


def test_other_readings_that_were_not_run_are_named_below_the_table(folder: Path) -> None:
    file = folder / "some" / "table1.toml"
    more = '\n[[rows]]\nname = "IFCA again"\nof = "IFCA+2"\nmethod = { name = "ifca", preset = "paper", k = 2 }\n'
    file.write_text(file.read_text() + more)
    e = load_all(folder)[0]
    cells = list(e.cells("full", [0]))
    write_result(cells[0], result(cells[0], accuracy_mean=0.5))
    assert "Other readings, not run at this scale: IFCA again.\n" in page([e]) and "| IFCA again |" not in page([e])
    write_result(cells[-1], result(cells[-1], accuracy_mean=0.5))
    assert "Other readings" not in page([e]) and "| IFCA again |" in page([e])
