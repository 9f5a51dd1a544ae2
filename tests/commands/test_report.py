"""clusterfl report, and the reports of run and compare."""

from __future__ import annotations

from pathlib import Path

from tests.report.folders import made

from .calls import SMALL, call


def test_report(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b", seed=1)
    done = call("report", "a", folder=tmp_path)
    assert done.exit_code == 0 and done.stdout == "written to a/report.html\n"
    done = call("report", "a", "b", "--out", "both.html", folder=tmp_path)
    assert done.stdout == "written to both.html\n" and "over 2 seeds" in (tmp_path / "both.html").read_text()
    done = call("report", "c", folder=tmp_path)
    assert done.exit_code == 2 and done.stderr.startswith("error: c should be")


def test_a_run_says_where_its_report_is(tmp_path: Path) -> None:
    done = call("run", *SMALL, "--out", "x", "--quiet", "--report", "--track", "csv", folder=tmp_path)
    assert done.stdout.endswith("written to x\nreport: x/report.html\n")
    assert (tmp_path / "x" / "report.html").exists() and (tmp_path / "x" / "scalars.csv").exists()
    done = call("run", *SMALL, "--out", "x", "--quiet", folder=tmp_path)  # the same run again: its old page is gone
    assert done.stdout.endswith("see `clusterfl report x`\n") and not (tmp_path / "x" / "report.html").exists()
    done = call("run", *SMALL, "--out", "y", "--track", "nothing", folder=tmp_path)
    assert done.exit_code == 2 and "track=nothing should be" in done.stderr and not (tmp_path / "y").exists()


def test_a_live_run_says_where_it_is_served(tmp_path: Path) -> None:
    done = call("run", *SMALL, "--out", "x", "--quiet", "--live", folder=tmp_path)
    assert "live at http://127.0.0.1:" in done.stderr and "report: x/report.html" in done.stdout


def test_a_comparison_has_one_too(tmp_path: Path) -> None:
    done = call(
        "compare", *SMALL, "--methods", "ifca", "--seeds", "0", "--out", "c", "--quiet", "--report", folder=tmp_path
    )
    assert done.exit_code == 0 and done.stdout.endswith("report: c/report.html\n")
    assert "3 methods compared over 1 seed" in (tmp_path / "c" / "report.html").read_text()
