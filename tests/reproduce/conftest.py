"""The made-up experiment, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.reproduce.spec import Experiment, load

from .tiny import made_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_folder(tmp_path)


@pytest.fixture
def tiny(folder: Path) -> Experiment:
    return load(folder / "some" / "table1.toml")
