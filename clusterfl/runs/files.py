"""Writing so that a file is whole or not there, even if the machine stops in between."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterfl.errors import ClusterflError, DataError

FEW = 100  # files that are synced one by one, which leaves what others write alone


def write_whole(path: Path, data: bytes, *, sync: bool = True) -> None:
    """The file is there whole or not at all: a temporary file, synced and renamed, in a folder that is synced.

    Without ``sync`` that holds for a process that is killed; for a machine that goes down only after ``sync_files``.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _failed(path, e) from e


def sync_files(folder: Path, names: Sequence[str]) -> None:
    """Files that were written without a sync are on the disk when this returns: each, or many by one call."""
    try:
        if len(names) <= FEW or not _sync_whole(folder):
            for name in names:
                _sync(folder / name, os.O_RDWR)  # some systems sync only what may be written
            sync_folder(folder)
    except OSError as e:
        raise _failed(folder, e) from e


def _sync_whole(folder: Path) -> bool:
    """Syncs the file system of a folder, where the system can."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None
    if call is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        if call(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)
    return True


def append(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Adds to a file; with ``sync`` it is on the disk when this returns. A crash may leave a part of it."""
    try:
        with path.open("ab") as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())
    except OSError as e:
        raise _failed(path, e) from e


def sync_folder(folder: Path) -> None:
    """A rename lasts only once its folder is on the disk."""
    _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bounded(path: Path, largest: int) -> bytes:
    """A file's content, unless it is far larger than such a file can be."""
    size = path.stat().st_size
    if size > largest:
        raise DataError(f"{path} should have at most {largest:,} bytes, but has {size:,}")
    return path.read_bytes()


def _failed(path: Path, error: OSError) -> ClusterflError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space" if full else "make its folder one that is there and can be written"
    return ClusterflError(f"{path} could not be written ({error.strerror}); {remedy} and resume")
