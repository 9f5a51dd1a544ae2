"""The sentence that a wrong config is answered with."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfl.config import Config
from clusterfl.errors import ClusterflError


def error(*overrides: str, **table: Any) -> str:
    """The sentence that these overrides (or this table) are answered with."""
    with pytest.raises(ClusterflError) as caught:
        Config.parse(table) if table else Config.load(None, overrides)
    said = str(caught.value)
    assert "\n" not in said and "should" in said
    return said
