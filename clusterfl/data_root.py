"""Where datasets lie."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds datasets: the argument, else CLUSTERFL_DATA, else the user's cache folder."""
    chosen = root or os.environ.get("CLUSTERFL_DATA") or platformdirs.user_cache_dir("clusterfl")
    return Path(chosen).expanduser()
