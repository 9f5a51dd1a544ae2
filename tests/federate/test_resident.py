"""The resident answers whoever may enter its folder, one after another, and survives what it cannot answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from clusterfl.federate import resident
from clusterfl.federate.resident import ask, listen


def test_messages_of_any_length_and_failures() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node"

        def answer(message: bytes) -> bytes:
            if message == b"bad":
                raise ValueError("cannot be read")
            return message[::-1]

        server = listen(path, answer)
        try:
            big = bytes(range(256)) * 20_000
            assert ask(str(path), b"abc") == b"cba"
            assert ask(str(path), b"bad") is None
            assert ask(str(path), big) == big[::-1]
            assert ask(str(path), b"") == b""
        finally:
            server.close()


@pytest.mark.parametrize("path", ["", "/nowhere/at/all"])
def test_where_there_is_none_nobody_answers(path: str) -> None:
    assert ask(path, b"abc") is None


def test_a_supernode_that_ends_is_started_again_until_it_is_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "AGAIN", 0.01)
    monkeypatch.setattr(resident, "REFUSED", 0.3)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    begun: list[str] = []

    def start(place: str) -> subprocess.Popen[bytes]:
        begun.append(place)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({7 if len(begun) < 99 else 0})"])

    assert resident.live(tmp_path, start, lambda: lambda message: message) == 7
    assert len(begun) > 1 and not Path(begun[0]).parent.exists()


def test_a_node_loads_no_more_than_it_needs() -> None:
    """Flower starts a process per message, and nodes may be small: beside PyTorch nothing large."""
    large = ["sklearn", "scipy", "pandas", "pyarrow", "pydantic", "flwr"]
    code = f"import sys, clusterfl.federate.node; print([m for m in {large} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
