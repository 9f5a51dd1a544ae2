"""Pages that are played as they are written: their files, their commands, their code, what they print."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import clusterfl
from tests.commands.calls import call

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, text) of every block, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """(words, the lines that it should print) of every command of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command.split(), [line for line in lines if line]


def roughly(line: str) -> str:
    """Without decimals, whose last digits are those of a machine."""
    return re.sub(r"\d+\.\d+", "#", line)


def printed(words: list[str], folder: Path) -> str:
    if words[0] == "clusterfl":
        done = call(*words[1:], folder=folder)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout)
    return subprocess.run(
        [sys.executable, "-I", *words[1:]], cwd=folder, capture_output=True, text=True, check=True, timeout=240
    ).stdout


def play(page: str, folder: Path) -> None:
    code = types.ModuleType(page.removesuffix(".md").replace("-", "_"))
    for language, text in blocks(page):
        named = re.match(r"# ([\w.]+\.\w+)\n", text)
        if language == "console":
            for words, lines in commands(text):
                got = [line for line in printed(words, folder).splitlines() if line]
                wanted = lines[:-1] if lines and lines[-1] == "…" else lines
                shown = got[: len(wanted)] if len(wanted) < len(lines) else got
                assert [roughly(line) for line in shown] == [roughly(line) for line in wanted], words
        elif named:
            (folder / named[1]).write_text(text)
        elif language == "python":
            exec(compile(text, page, "exec"), code.__dict__)


def test_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    play("tutorial.md", tmp_path)
    # the program without clusterfl said what the library says
    x = [[0.3, -1.2, 0.1], [-1.0, 0.8, 0.4]]
    plain = printed(["python", "plain.py"], tmp_path).split()
    assert plain == clusterfl.load("runs/first").predict("hospital-03", np.array(x)).tolist()
    # and without a method nobody has to say how many kinds there are
    Path("unnamed.toml").write_text(Path("hospitals.toml").read_text().partition("[method]")[0])
    said = printed(["clusterfl", "run", "unnamed.toml", "--out", "runs/unnamed", "--quiet"], tmp_path)
    assert said.startswith("kin on ") and "clusters 2 of 2" in said
    homes = [clusterfl.load(folder).clusters for folder in ("runs/first", "runs/unnamed")]
    assert len({tuple(home[name] for home in homes) for name in homes[0]}) == 2, "the same two groups"


def test_a_real_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    play("natural-table.md", tmp_path)
