"""Files into arrays, one function per format. A damaged file is a DataError that names it."""

from __future__ import annotations

import functools
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from clusterfl.errors import DataError

Array = npt.NDArray[Any]
P = ParamSpec("P")
R = TypeVar("R")

# what the standard library, numpy, scipy and pyarrow raise on damaged input, all of them subclasses of these
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def names_the_file(read: Callable[P, R]) -> Callable[P, R]:
    """Turns whatever a damaged file makes a reader raise into one sentence with the file's name."""

    @functools.wraps(read)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except _DAMAGE as error:
            raise DataError(
                f"{args[0]} should be a whole, readable file, but {_plain(error)}; remove it and get it again"
            ) from error

    return guarded


def _plain(error: BaseException) -> str:
    said = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@names_the_file
def read_npz(path: Path, *names: str) -> tuple[Array, ...]:
    """The named arrays of an .npz file; pickled objects inside are refused."""
    with np.load(path, allow_pickle=False) as archive:
        missing = [n for n in names if n not in archive.files]
        if missing:
            raise ValueError(f"it holds {sorted(archive.files)} and not {missing}")
        return tuple(archive[n] for n in names)


@names_the_file
def read_idx(path: Path) -> Array:
    """An IDX file of bytes (Y. LeCun's format), plain or gzipped: images [n, H, W] or labels [n]."""
    opened = gzip.open if path.suffix == ".gz" else Path.open
    with opened(path, "rb") as file:
        data: bytes = file.read()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8:
        raise ValueError("its first bytes are not those of an IDX file of bytes")
    axes = data[3]
    head = 4 + 4 * axes
    shape = tuple(np.frombuffer(data[4:head], dtype=">u4").astype(int).tolist())
    if len(shape) != axes or len(data) != head + int(np.prod(shape)):
        raise ValueError(f"it has {len(data) - head} bytes where its header says {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)
