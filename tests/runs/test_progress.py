"""The progress display: live on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from clusterfl.runs.progress import Lines, Live, Progress, Silent, by_cluster, display, size

from .python_runs import run


def row(round_: int, accuracy: float | None = 0.5, ari: float | None = 1.0) -> dict[str, object]:
    return {
        "round": round_,
        "accuracy_mean": accuracy,
        "ari": ari,
        "clusters": 4,
        "bytes_up": 1_000_000,
        "bytes_down": 2_300_000,
    }


def test_plain_lines() -> None:
    text = io.StringIO()
    lines = Lines(Console(file=text, width=40))
    lines.start("ifca", 4)
    for r in (row(0, ari=None), row(1), row(2, accuracy=None), row(4)):
        lines.update(r)
    first, second, last = text.getvalue().splitlines()  # a round that is not measured has no line
    assert first == "ifca  round 0/4  accuracy 0.500  clusters 4  3.3 MB  ? left"
    assert second.startswith("ifca  round 1/4  accuracy 0.500  ARI 1.00  clusters 4  3.3 MB  0:00:")
    assert last.endswith("0:00:00 left")


def test_live() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    columns = TextColumn("{task.description} {task.fields[round]} {task.fields[figures]}")
    live = Live(Bar(columns, console=console))
    live.start("ifca", 9)
    live.update({**row(2, accuracy=0.25), "by_cluster": {0: (0.25, 8)}})
    console.print(live.picture())
    assert "ifca 2/9 accuracy 0.250" in text.getvalue() and "cluster" not in text.getvalue().split("\n", 1)[1]
    live.update({**row(3), "by_cluster": {0: (0.75, 6), 1: (0.5, 2)}})
    live.update(row(4, accuracy=None))  # keeps the last figures
    console.print(live.picture())
    said = text.getvalue()
    assert "ifca 4/9 accuracy 0.500" in said and "cluster 0" in said and "0.750" in said and "2 clients" in said
    live.pictures = False
    assert live.picture() is live.progress


def test_by_cluster_is_the_mean_of_who_was_measured(tmp_path: Path) -> None:
    record = run(tmp_path, rounds=1).records[-1]
    accuracy = record.accuracy.clone()
    accuracy[0] = float("nan")
    found = by_cluster(replace(record, scores={**record.scores, "accuracy": accuracy}))
    assert found.keys() == set(record.assign.tolist()) and sum(size for _, size in found.values()) == len(accuracy)
    for k, (mean, _) in found.items():
        assert mean == pytest.approx(float(accuracy[record.assign == k].nanmean()))
    nothing = by_cluster(replace(record, scores={"accuracy": torch.full_like(accuracy, torch.nan)}))
    assert all(mean != mean for mean, _ in nothing.values())


def test_the_display_fits_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    with display(quiet=True) as shown:
        assert isinstance(shown, Silent)
        shown.start("x", 1)
        shown.update(row(1))
    with display() as shown:
        assert isinstance(shown, Lines)
    assert capsys.readouterr() == ("", "")


def test_sizes() -> None:
    found = [size(n) for n in (0, 999, 1000, 1_234_567, 5e9, 2e13)]
    assert found == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "20.0 TB"]


def test_a_run_tells_its_display(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []

    class Noting:
        def start(self, label: str, rounds: int) -> None:
            told.append((label, rounds))

        def update(self, row: dict[str, Any]) -> None:
            told.append((row["round"], row["clusters"]))

    run(tmp_path, rounds=2, callbacks=[Progress(Noting(), "mine")])
    assert told == [("mine", 2), (0, 2), (1, 2), (2, 2)]
    told.clear()
    run(tmp_path, rounds=3, resume=True, callbacks=[Progress(Noting(), "mine")])
    assert told == [("mine", 3), (2, 2), (3, 2)]
