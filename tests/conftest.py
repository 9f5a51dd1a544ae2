"""What every test finds as the last one left it: nothing."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from clusterfl.engines.pool import NoRoom

SHARED = Path("/dev/shm")


def nothing_to_share() -> bool:
    return not SHARED.exists() or shutil.disk_usage(SHARED).free < 1 << 20


def skipping_without_shared_memory() -> Generator[None, object, object]:
    """Worker processes share what clients hold: where a machine has no memory for that, there is nothing to test."""
    try:
        return (yield)
    except NoRoom as e:
        if not nothing_to_share():
            raise
        pytest.skip(str(e))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from skipping_without_shared_memory())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from skipping_without_shared_memory())


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
