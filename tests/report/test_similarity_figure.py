"""FCCA's heat maps are written, sorted by cluster."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.errors import ClusterflError
from clusterfl.parts.similarity import Similarity, similarity
from clusterfl.report.similarity import draw_similarity

ASSIGN = torch.tensor([0, 1, 0, 1, 2])


def matrices() -> Similarity:
    return similarity(keys.normal(keys.key(0), 5, 2, 3, 4))


def test_writes_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = draw_similarity(matrices(), ASSIGN, tmp_path / "s.png", ids=torch.arange(10, 15), title="five clients")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ClusterflError, match=r"pip install 'clusterfl\[report\]'"):
        draw_similarity(matrices(), ASSIGN, tmp_path / "s.png")
