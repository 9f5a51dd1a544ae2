"""Worker processes take seconds to start: a file's tests share them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterfl.engines import Pool
from clusterfl.testing.small import small_population, small_task


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    engine = Pool(small_task(), small_population(), workers=2)
    yield engine
    engine.close()
