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
from clusterfl.report import figures, pseudo

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
        (figures.pseudo_samples, SEARCH),
        (figures.fresh_answers, SEARCH),
        (figures.unknown_labels, FLOWS),
        (figures.split_by_alpha, SPLIT),
    ],
)
def test_it_is_drawn(draw: Draw, changes: dict[str, Any], tmp_path: Path) -> None:
    draw([], Config.parse(merged(TINY, changes)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_fig_7_shows_both_samplers_of_the_same_centres(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[Tensor, Sequence[str]]] = []
    monkeypatch.setattr(pseudo, "draw_samples", lambda x, path, per_class, names: drawn.append((x, names)))
    figures.pseudo_samples([], Config.parse(merged(TINY, SEARCH)), tmp_path / "figure.png")
    (x, names) = drawn[0]
    assert list(names) == ["searched 0", "searched 1", "generated 0", "generated 1"] and len(x) == 4
    assert not torch.equal(x[:2], x[2:])
