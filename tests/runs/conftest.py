"""A run that tests of what it leaves behind share."""

from __future__ import annotations

import pytest

from .small_runs import Run, done


@pytest.fixture(scope="module")
def ifca(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("ifca")
    return folder, *done(folder, "method.name=ifca")
