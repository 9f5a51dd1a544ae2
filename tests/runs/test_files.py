"""Files that are whole or not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterfl.errors import ClusterflError, DataError
from clusterfl.runs import files
from clusterfl.runs.files import append, read_bounded, sync_files, write_whole


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in (b"one", b"", b"another"):
        write_whole(path, data)
        assert path.read_bytes() == data and list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_whole(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ClusterflError, match=r"a could not be written \(No space left on device\); free some space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ClusterflError, match="could not be written"):
        append(tmp_path / "nowhere" / "b", b"x")


@pytest.mark.parametrize("whole", [True, False], ids=["many at once", "where that cannot be"])
def test_many_files_are_synced_at_the_end(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: synced.append(os.path.realpath(f"/proc/self/fd/{handle}")))
    if not whole:
        monkeypatch.setattr(files, "_sync_whole", lambda _: False)
    names = [str(i) for i in range(files.FEW + 1)]
    for name in names:
        write_whole(tmp_path / name, name.encode(), sync=False)
    assert not synced and sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    sync_files(tmp_path, names)
    each = [*(str(tmp_path / name) for name in names), str(tmp_path)]
    assert synced == each if not (whole and sys.platform == "linux") else not synced
    synced.clear()
    sync_files(tmp_path, names[:3])
    assert synced == [*each[:3], each[-1]]
    with pytest.raises(ClusterflError, match="could not be written"):
        sync_files(tmp_path, ["nowhere"])


def test_appends(tmp_path: Path) -> None:
    append(tmp_path / "log", b"a\n")
    append(tmp_path / "log", b"b\n", sync=False)
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_bounded(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(DataError, match="should have at most 10 bytes, but has 11"):
        read_bounded(tmp_path / "a", 10)
