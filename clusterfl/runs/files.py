"""Writing so that a file is whole or not there, even if the machine stops in between."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from clusterfl.errors import ClusterflError, DataError


def write_whole(path: Path, data: bytes) -> None:
    """The file is there whole or not at all: a temporary file, synced and renamed, in a folder that is synced."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _failed(path, e) from e


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
    handle = os.open(folder, os.O_RDONLY)
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
