"""The command line, called in this process or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from clusterfl.commands.app import app

SETTINGS = {
    "rounds": "2",
    "data.clients": "8",
    "data.samples": "20",
    "data.test_samples": "50",
    "engine.name": "serial",
}


def words(settings: Iterable[str]) -> list[str]:
    """Settings as the command line takes them."""
    return [word for setting in settings for word in ("--set", setting)]


SMALL = words(f"{key}={value}" for key, value in SETTINGS.items())


def call(*arguments: str, folder: Path | None = None) -> Any:
    before = Path.cwd()
    if folder is not None:
        os.chdir(folder)
    try:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    finally:
        os.chdir(before)


def process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clusterfl", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=240)
