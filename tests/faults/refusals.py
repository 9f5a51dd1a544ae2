"""Errors that a user can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterfl.errors import ClusterflError


def one_sentence(error: BaseException) -> str:
    said = str(error)
    assert said and "\n" not in said.strip() and "Traceback" not in said, f"not one sentence: {said[:200]!r}"
    return said


def refuses(f: Callable[[], Any], *words: str) -> None:
    """``f`` ends in an error that a user can read."""
    try:
        f()
    except ClusterflError as e:
        said = one_sentence(e)
        for word in words:
            assert word in said, f"{word!r} is not in {said[:200]!r}"
    else:
        raise AssertionError("it was accepted")
