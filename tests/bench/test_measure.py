"""The benchmark's own doings, on a workload that takes a moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterfl.bench.measure import Result, bench_plans, interleaved
from clusterfl.bench.workloads import WORKLOADS
from clusterfl.commands.app import app
from clusterfl.commands.bench import lines
from clusterfl.engines.auto import candidates, describe_plan


def test_plans_are_timed_and_the_choice_is_one_of_them(tmp_path: Path) -> None:
    work = replace(WORKLOADS["mclr"], clients=4, samples=20, batch=10, steps=2)
    got = bench_plans(work, tmp_path, 1)
    assert set(got["plans"]) == {describe_plan(p) for p in candidates(work.task(), 4, 2)}
    assert got["times_best"] == pytest.approx(got["plans"][got["auto"]] / min(got["plans"].values())) and (
        got["times_best"] >= 1.0
    )
    shown = lines("mclr", got)
    assert len(shown) == len(got["plans"]) + 1 and "x the best" in shown[-1]


def test_turns_are_interleaved_and_the_first_warms_up() -> None:
    order: list[tuple[str, int]] = []

    def turn(name: str, r: int) -> float:
        order.append((name, r))
        return 100.0 if r == 0 else float(r)

    taken = interleaved([lambda r: turn("a", r), lambda r: turn("b", r)], 3)
    assert taken == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "the warm-up does not count"
    assert order == [(n, r) for r in range(4) for n in "ab"]


def test_an_unknown_workload_is_named() -> None:
    got = CliRunner().invoke(app, ["bench", "--workloads", "mclar"])
    assert got.exit_code == 2 and "did you mean 'mclr'" in got.stderr


QUIET = Result("mclr", "digits", "stacked", 0.5, 59.0, 1.0, 0.1, 100.0, load=0.1, spread=1.2)


def test_a_ratio_is_told_only_where_the_machine_was_ours() -> None:
    """On a busy one the loop with all threads collapses, and 118 times the loop would be no merit of ours."""
    assert QUIET.quiet and QUIET.json()["speedup_vs_loop"] == 118.0 and QUIET.json()["speedup_vs_limit"] == 2.0
    assert "118.00x the loop (59.00 s)" in lines("mclr", QUIET.json())[0]
    for busy in (replace(QUIET, load=1.4), replace(QUIET, spread=3.1)):
        got = busy.json()
        assert not busy.quiet and got["speedup_vs_loop"] is None and got["speedup_vs_limit"] is None
        said = lines("mclr", got)[0]
        assert "no ratio: the machine was busy" in said and "x the loop" not in said
        assert f"others' load {busy.load:.1f} per core" in said and f"turns {busy.spread:.1f} times apart" in said
