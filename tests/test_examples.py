"""The gallery: every script under examples/ runs from an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SHORT = {"deployment": ["--simulate"]}  # tests/federate/test_local.py runs the whole


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(script: Path, tmp_path: Path) -> None:
    assert script.name in (script.read_text(encoding="utf-8").split('"""')[1])  # says how it is started
    printed(script, tmp_path, *SHORT.get(script.stem, []))


def printed(script: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, script, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout
