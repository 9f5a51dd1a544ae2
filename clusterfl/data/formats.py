"""Files into arrays, one function per format. A damaged file is a DataError that names it."""

from __future__ import annotations

import functools
import gzip
import json
import lzma
import pickle
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

# what the standard library, numpy, scipy, scikit-learn and pyarrow raise on damaged input
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    NotImplementedError,
    MemoryError,
    RecursionError,
    pickle.UnpicklingError,
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
            said = " ".join(str(error).split()).rstrip(".")
            raise DataError(
                f"{args[0]} should be a whole, readable file, but {type(error).__name__}: {said}; "
                "remove it and get it again"
            ) from error

    return guarded


@names_the_file
def read_npz(path: Path, *names: str) -> tuple[Array, ...]:
    """The named arrays of an .npz file; pickled objects inside are refused."""
    with np.load(path, allow_pickle=False) as archive:
        missing = [n for n in names if n not in archive.files]
        if missing:
            raise ValueError(f"it holds {sorted(archive.files)} and not {missing}")
        arrays = tuple(archive[n] for n in names)
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind == "c":
            raise DataError(f"{path}: {name} should hold real numbers, not {array.dtype}")
    return arrays


@names_the_file
def npz_names(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


@names_the_file
def read_idx(path: Path) -> Array:
    """An IDX file of bytes (Y. LeCun's format), plain or gzipped: images [n, H, W] or labels [n]."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8:
        raise ValueError("its first bytes are not those of an IDX file of bytes")
    axes = data[3]
    head = 4 + 4 * axes
    shape = tuple(np.frombuffer(data[4:head], dtype=">u4").astype(int).tolist())
    if len(shape) != axes or len(data) != head + int(np.prod(shape)):
        raise ValueError(f"it has {len(data) - head} bytes where its header says {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Plain containers and numpy arrays; anything else in a pickle could run code when it is read."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images does not need")
        return allowed[module, name]


@names_the_file
def read_cifar(path: Path, labels: bytes) -> tuple[Array, Array]:
    """One batch of CIFAR's "python version": images [n, 32, 32, 3] and labels."""
    with path.open("rb") as file:
        batch = _ArraysOnly(file, encoding="bytes").load()
    x = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return x, np.asarray(batch[labels], dtype=np.int64)


@names_the_file
def read_svhn(path: Path) -> tuple[Array, Array]:
    """A cropped-digits .mat file of SVHN: images [n, 32, 32, 3]; label 10 there is the digit 0."""
    from scipy.io import loadmat

    data = loadmat(path)
    return data["X"].transpose(3, 0, 1, 2), data["y"].ravel().astype(np.int64) % 10


@names_the_file
def read_usps(path: Path) -> tuple[Array, Array]:
    """USPS in LIBSVM's format, bzip2: 256 values in -1..1, labels 1..10."""
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(str(path), n_features=256)
    pixels = np.rint((x.toarray() + 1) / 2 * 255).clip(0, 255).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), y.astype(np.int64) - 1


@names_the_file
def read_leaf(path: Path) -> dict[str, tuple[list[Any], list[int]]]:
    """One json file of LEAF: each user's samples and labels."""
    data = json.loads(path.read_text(encoding="utf-8"))["user_data"]
    users = {user: (held["x"], [int(y) for y in held["y"]]) for user, held in data.items()}
    uneven = [user for user, (x, y) in users.items() if len(x) != len(y)]
    if uneven:
        raise ValueError(f"user {uneven[0]!r} has {len(users[uneven[0]][0])} samples and not as many labels")
    return users
