"""What every test finds as the last one left it: nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands set the root logger's level and handlers; the next test should not notice."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    logging.disable(logging.NOTSET)
    root.setLevel(logging.WARNING)  # a fixture of a whole module may have called a quiet command
    for name in [n for n in root.manager.loggerDict if n.partition(".")[0] == "clusterfl"]:
        mine = logging.getLogger(name)  # commands set its level, and libraries that configure logging silence it
        mine.disabled, mine.propagate = False, True
        mine.setLevel(logging.NOTSET)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
