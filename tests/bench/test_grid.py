"""The benchmark's grid and its leaderboard: worlds that load, rows that are not run twice, ranks by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfl.bench.grid import (
    HELD_OUT,
    OPEN,
    ORACLE,
    SHIFTS,
    SKEWS,
    Entry,
    World,
    config_of,
    entries,
    measure,
    worlds,
)
from clusterfl.bench.leaderboard import (
    below,
    common,
    found_of_true,
    goals,
    key_of,
    key_of_row,
    near_best,
    page,
    ranks,
    read,
    short_of_oracle,
    write,
)
from clusterfl.data.registry import SOURCES
from clusterfl.methods import METHODS
from tests.commands.calls import call

ROW = {"version": "v1", "dataset": "digits", "scenario": "rotate", "skew": "IID", "seed": 0, "worst5": 0.1, "ari": 1.0}
ROW |= {"clusters": 4, "bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "error": "", "each": [0.5, 0.4]}


def test_every_world_is_a_config_for_every_method() -> None:
    chosen = worlds(["digits", "multi_source", "femnist"])
    assert len(chosen) == len(SHIFTS) * len(SKEWS) + len(SKEWS) + 1
    for method in [*METHODS, ORACLE]:
        config = config_of(Entry(chosen[0], method, 3))
        assert config.seed == 3 and config.method.name == ("fedavg" if method == ORACLE else method)
    assert [world.groups for world in chosen[::3]] == [4, 4, 4, 2, 4, 1, 4, 1]
    lonely = config_of(Entry(World("digits", "none", "IID"), "ifca", 0))
    assert lonely.method.k == 4 and lonely.data.resolved().clusters == 1  # type: ignore[attr-defined]


def test_every_dataset_of_the_grid_is_a_known_source() -> None:
    assert {*OPEN, *HELD_OUT} <= set(SOURCES)


def test_a_row_is_measured_and_the_oracle_knows_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterfl.bench.grid.ROUNDS", 2)
    monkeypatch.setattr("clusterfl.bench.grid.CLIENTS", 8)
    world = World("digits", "rotate", "IID")
    fedavg, oracle = (measure(Entry(world, name, 0)) for name in ("fedavg", ORACLE))
    assert fedavg["error"] == oracle["error"] == "" and oracle["accuracy"] > fedavg["accuracy"]
    assert fedavg["clusters"] is None and oracle["clusters"] == 4
    broken = measure(Entry(World("nowhere", "rotate", "IID"), "fedavg", 0))
    assert "nowhere" in broken["error"] and "accuracy" not in broken


def test_ranks_share_ties_and_leave_the_oracle_out() -> None:
    values = {"a": 0.9, "b": 0.8, "c": 0.8, ORACLE: 1.0}
    rows = [{**ROW, "method": m, "accuracy": v} for m, v in values.items()]
    assert ranks(rows) == {"a": 1.0, "b": 2.5, "c": 2.5}
    partly = [*rows, {**ROW, "skew": "Dir .1", "method": "b", "accuracy": 1.0}]
    assert ranks(common(partly)) == ranks(rows)  # a world that few have run does not count
    many = {f"m{i}": i / 20 for i in range(10)}
    most = [{**ROW, "method": m, "accuracy": v} for m, v in many.items()]
    behind = [{**row, "skew": "Dir .1"} for row in most if row["method"] != "m0"]
    assert set(ranks(common([*most, *behind]))) == {*many} - {"m0"}  # one that lacks a world of the others has no rank


def test_near_best_is_what_pairs_of_clients_cannot_tell_from_it() -> None:
    each = {"a": [0.9, 0.8, 0.7, None], "b": [0.8, 0.9, 0.69, 0.1], "c": [0.5, 0.41, 0.29, 0.1], ORACLE: [1.0] * 4}
    rows = [{**ROW, "method": m, "accuracy": 0.5, "each": v} for m, v in each.items()]
    assert near_best(rows) == {"a": 1.0, "b": 1.0, "c": 0.0}


def test_what_failed_is_named_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterfl.bench.grid.ROUNDS", 1)
    monkeypatch.setattr("clusterfl.bench.grid.CLIENTS", 4)
    monkeypatch.setattr("clusterfl.bench.grid.SHIFTS", {"rotate": SHIFTS["rotate"]})
    monkeypatch.setattr("clusterfl.bench.grid.SKEWS", {"IID": None})
    write(tmp_path / "v1.parquet", [{**ROW, "method": "fedavg", "accuracy": None, "error": "DiskError: full"}])
    assert "- `fedavg`: DiskError: full" in page(read(tmp_path / "v1.parquet"))
    args = ("benchmark", "--only", "fedavg", "--seeds", "0", "--dir", str(tmp_path), "--page", str(tmp_path / "p.md"))
    assert call(*args).exit_code == 0
    (row,) = read(tmp_path / "v1.parquet")
    assert row["error"] == "" and len(row["each"]) == 4


def test_results_are_kept_and_not_run_again(tmp_path: Path) -> None:
    rows = [{**ROW, "method": m, "accuracy": 0.5} for m in ("ifca", "fedavg")]
    write(tmp_path / "v1.parquet", rows)
    again = read(tmp_path / "v1.parquet")
    assert sorted(r["method"] for r in again) == ["fedavg", "ifca"]
    assert {key_of_row(r) for r in again} == {
        key_of(e) for e in entries([World("digits", "rotate", "IID")], ["ifca", "fedavg"], [0])
    }
    text = page([*again, {**rows[0], "skew": "Dir .1", "ari": 0.25}, {**rows[1], "skew": "Dir .1", "clusters": None}])
    assert "| method | IID | Dir .3 | Dir .1 |" in text and "| ifca | 1.00 | - | 0.25 |" in text
    text = page(again)
    assert "| ifca | 1.5 | 1.00 | 50.00" in text and "No world has been run by enough methods yet" in text
    done = call("benchmark", "--page-only", "--dir", str(tmp_path), "--page", str(tmp_path / "p.md"))
    assert done.exit_code == 0 and (tmp_path / "p.md").read_text(encoding="utf-8") == text
    assert call("benchmark", "--datasets", "cifar", "--dir", str(tmp_path)).exit_code == 2


def test_rows_of_an_interrupted_benchmark_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(todo: list[Entry], jobs: int, root: str | None) -> Iterator[dict[str, Any]]:
        for entry in todo[:2]:
            yield {**ROW, "method": entry.method, "skew": entry.world.skew, "accuracy": 0.5}
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterfl.commands.benchmark.carried_out", two)
    done = call(
        "benchmark", "--only", "fedavg,local", "--seeds", "0", "--dir", str(tmp_path), "--page", str(tmp_path / "p")
    )
    assert done.exit_code != 0 and {row["method"] for row in read(tmp_path / "v1.parquet")} == {"fedavg", "local"}


def test_rows_are_measured_anew_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for, was not reached or could not be run stays as it was."""

    def three(todo: list[Entry], jobs: int, root: str | None) -> Iterator[dict[str, Any]]:
        for entry, error in zip(todo[:3], ("", "", "DiskError: full"), strict=True):
            yield {**ROW, "method": "fedavg", "skew": entry.world.skew, "accuracy": 0.9, "error": error}
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterfl.commands.benchmark.carried_out", three)
    monkeypatch.setattr("clusterfl.bench.grid.SHIFTS", {name: SHIFTS[name] for name in ("rotate", "none")})
    old = [{**ROW, "method": m, "skew": skew, "accuracy": 0.5} for m in ("fedavg", "local") for skew in SKEWS]
    beyond = {**ROW, "method": "fedavg", "scenario": "none", "accuracy": 0.5}
    write(tmp_path / "v1.parquet", [*old, beyond])
    page_file = str(tmp_path / "p.md")
    args = ("benchmark", "--only", "fedavg", "--seeds", "0", "--again", "--dir", str(tmp_path), "--page", page_file)
    done = call(*args)
    assert done.exit_code != 0 and "DiskError: full; the row that is there stays" in done.output
    found = {(r["method"], r["scenario"], r["skew"]): r["accuracy"] for r in read(tmp_path / "v1.parquet")}
    assert len(found) == 7 and not any(r["error"] for r in read(tmp_path / "v1.parquet"))
    assert [key for key, accuracy in found.items() if accuracy == 0.9] == [
        ("fedavg", "rotate", "Dir .3"),
        ("fedavg", "rotate", "IID"),
    ]


def test_the_page_says_how_many_clusters_were_found_and_who_has_no_row() -> None:
    worlds_of = [{"scenario": "rotate"}, {"scenario": "one swap"}, {"scenario": "none"}]
    rows = [{**ROW, **world, "method": m, "accuracy": 0.5} for world in worlds_of for m in ("cfl", "ifca", "local")]
    rows = [{**row, "clusters": {"cfl": 1, "ifca": 3, "local": None}[row["method"]]} for row in rows]
    rows.append({**rows[0], "seed": 1, "clusters": 9})  # which only CFL ran: it does not count
    text = page(rows)
    assert "| ARI | K found | one | MB | seconds | runs | seeds |" in text
    assert "| 1.00 | 1.0 of 3.0 | 1.00 | 0.0 | 1.0 | 3 | 2 |" in text
    assert "| 1.00 | 3.0 of 3.0 | 0.00 | 0.0 | 1.0 | 3 | 1 |" in text
    assert "| - | - | - | 0.0 | 1.0 | 3 | 1 |" in text
    (absent,) = [line for line in text.splitlines() if "Without a row in this part: " in line]
    assert "`fcca`" in absent and "`cfl`" not in absent
    writers = {**rows[0], "dataset": "femnist", "scenario": "natural writers", "clusters": 5}
    assert found_of_true([writers]) == "-"  # nobody knows the truth


def test_what_is_asked_of_kin_is_counted() -> None:
    """Means over seeds decide, a world that the oracle cannot solve is not held against it, chance is no defeat."""
    solved = {**ROW, "accuracy": 0.5, "each": [0.50, 0.40, 0.45, 0.52]}
    hard, noisy = {**solved, "skew": "Dir .1"}, {**solved, "skew": "Dir .3"}
    better = [0.71, 0.59, 0.66, 0.70]
    rows = [
        {**solved, "method": "kin", "ari": 0.98},
        {**solved, "method": ORACLE},
        {**solved, "method": "local", "each": better},
        {**hard, "method": "kin", "ari": 0.4},
        {**hard, "method": "kin", "ari": 0.2, "seed": 1},
        {**hard, "method": ORACLE, "ari": 0.4},  # seed 1 of the oracle was not run
        {**hard, "method": "fedavg", "each": [0.45, 0.45, 0.44, 0.54]},
        {**hard, "method": "fedavg", "each": [0.45, 0.45, 0.44, 0.54], "seed": 1, "bytes_down": 2},
        {**noisy, "method": "kin", "ari": 0.5},
        {**noisy, "method": ORACLE, "ari": 0.6},
        {**noisy, "scenario": "none", "method": "kin", "ari": 0.0},
        {**noisy, "scenario": "none", "method": ORACLE},
    ]
    assert short_of_oracle(rows) == (3, [("digits", "rotate", "Dir .3")])
    assert below(rows, "kin", ("fedavg", "local")) == [("digits", "rotate", "IID")]
    text = goals(rows)
    assert "in 2 of 3 worlds with groups; short: digits, rotate, Dir .3." in text
    assert "more than chance in 1 of 4 worlds: digits, rotate, IID." in text
    assert "one group in 0 of 1 runs without groups" in text and "(0, 1 of `kin`)" in text
    assert "as many bytes as FedAvg in 1 of 2 runs" in text  # the others have no FedAvg to compare with
    assert goals([row for row in rows if row["method"] != "kin"]) == ""


def test_the_oracles_ari_is_what_can_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most clients of this world lack the classes that differ: even the true groups do not tell where they belong."""
    monkeypatch.setattr("clusterfl.bench.grid.ROUNDS", 1)
    easy, hard = (measure(Entry(World("digits", "one swap", skew), ORACLE, 1)) for skew in ("IID", "Dir .1"))
    assert easy["ari"] == 1.0 and 0.5 < hard["ari"] < 0.95
