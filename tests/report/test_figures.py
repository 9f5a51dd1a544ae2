"""The papers' figures that come from small runs of their own, in miniature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl.config import Config
from clusterfl.config.overrides import merged
from clusterfl.report import figures, pseudo, small_runs

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "digits", "clients": 8, "clusters": 2, "shift": "rotate", "samples": 20, "test_samples": 20},
    "model": {"name": "mlp", "widths": [8]},
    "local": {"lr": 0.1, "batch": 10},
    "engine": {"name": "serial"},
}
SEARCH = {"method": {"name": "md-icfl", "k": 2, "warmup": 2, "samples": 2, "iterations": 3}}
FLOWS = {"method": {"name": "fcca", "k": 2, "warmup": 1, "flow_steps": 2, "blocks": 2, "hidden": 8, "draws": 8}}
SPLIT = {"data": {"split": "class_groups", "clusters": 3, "alpha": 0.5, "shift": "none", "test": "own", "samples": 40}}

Draw = Callable[[Sequence[Any], Config, Path], None]


@pytest.mark.parametrize(
    ("draw", "changes"),
    [
        (small_runs.pseudo_samples, SEARCH),
        (small_runs.fresh_answers, SEARCH),
        (small_runs.unknown_labels, FLOWS),
        (small_runs.split_by_alpha, SPLIT),
    ],
)
def test_it_is_drawn(draw: Draw, changes: dict[str, Any], tmp_path: Path) -> None:
    draw([], Config.parse(merged(TINY, changes)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_fig_7_shows_both_samplers_of_the_same_centres(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[Tensor, Sequence[str]]] = []
    monkeypatch.setattr(pseudo, "draw_samples", lambda x, path, per_class, names: drawn.append((x, names)))
    small_runs.pseudo_samples([], Config.parse(merged(TINY, SEARCH)), tmp_path / "figure.png")
    (x, names) = drawn[0]
    assert list(names) == ["searched 0", "searched 1", "generated 0", "generated 1"] and len(x) == 4
    assert not torch.equal(x[:2], x[2:])


def test_while_there_is_one_cluster_its_model_is_the_one_abroad() -> None:
    """The fall after the cut is what AWCFL's Figs. 5 and 6 show."""
    r = {"intra_curve": [[1, 0.5], [2, 0.6], [3, 0.9]], "inter_curve": [[3, 0.2]]}
    assert figures.abroad(r) == [(1, 0.5), (2, 0.6), (3, 0.2)]
    assert figures.abroad({"inter_curve": [[3, 0.2]]}) == [(3, 0.2)]


def test_moves_are_of_every_round() -> None:
    r = {"ari_curve": [[0, 0.1], [2, 0.3], [4, 0.3]], "moved": [[2, 0.25]]}
    assert figures.moves_of(r) == [(1.0, 0.0), (2.0, 25.0), (3.0, 0.0), (4.0, 0.0)]
    assert figures.moves_of({"ari_curve": [[0, 0.1], [2, 0.1]]}) == [(1.0, 0.0), (2.0, 0.0)]


def test_a_line_far_below_and_the_first_rounds_do_not_press_the_others_together() -> None:
    rising = [[10.0, *[90.0 + k + j / 10 for j in range(20)]] for k in range(4)]
    low, high = figures.height(rising)
    assert 89 < low < 90.1 and 94 < high < 96
    low, high = figures.height([[20.0] * 21, *rising])
    assert low > 10 and high < 100
