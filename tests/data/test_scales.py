"""A user is told where columns or targets are not scaled alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.data.scales import notes_on_scales
from tests.hospitals import NAMES, hospital_table

RNG = np.random.default_rng(0)


def columns(*spreads: float) -> np.ndarray:
    return (RNG.normal(size=(200, len(spreads))) * spreads).astype(np.float32)


def test_the_widest_column_is_named() -> None:
    (note,) = notes_on_scales(columns(12.0, 21_000.0, 4.0), ["age", "income", "bmi"])
    assert note.startswith("column 'income' spreads over ") and "scale columns alike" in note
    assert "feature 1 spreads" in notes_on_scales(columns(1.0, 5000.0))[0]


@pytest.mark.parametrize("spreads", [(1.0, 3.0, 0.2), (12.0, 4.0, 30.0), (0.001, 0.5, 0.3), (0.0, 0.0), (7.0,)])
def test_what_is_nearly_alike_is_not(spreads: tuple[float, ...]) -> None:
    assert notes_on_scales(columns(*spreads)) == ()


def test_images_and_whole_numbers_are_left_alone() -> None:
    assert notes_on_scales(np.zeros((4, 1, 8, 8), np.float32)) == ()
    assert notes_on_scales(np.arange(8).reshape(4, 2) * 1000) == ()


@pytest.mark.parametrize(
    ("mean", "spread", "told"),
    [(0.0, 1.0, False), (1.0, 3.0, False), (180.0, 9.0, True), (0.0, 4000.0, True), (0.0, 0.01, True)],
)
def test_targets_far_from_standard_are(mean: float, spread: float, told: bool) -> None:
    y = (RNG.normal(size=300) * spread + mean).astype(np.float32)
    notes = notes_on_scales(columns(1.0, 1.0), targets=y)
    assert len(notes) == told and all("standardise them" in n for n in notes)


def test_it_reaches_the_user_from_python_and_from_a_table(tmp_path: Path) -> None:
    clients = [(columns(1.0, 9000.0), np.arange(200) % 2) for _ in range(3)]
    assert "feature 1 spreads" in clusterfl.Population.from_arrays(clients, clients).notes[0]
    table = hospital_table(NAMES)
    table["b"] *= 30_000
    table.to_csv(tmp_path / "t.csv", index=False)
    notes = Config.load(None, [f"data.source=table:{tmp_path / 't.csv'}"]).population().notes
    assert any("column 'b' spreads" in note for note in notes)
