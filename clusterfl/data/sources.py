"""Where samples come from: named datasets, looked up in a data folder and read from their own formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data.partition import stratified
from clusterfl.data.readers import read_idx, read_npz
from clusterfl.errors import ConfigError, DataError, nearest

Array = npt.NDArray[Any]
NORMALIZE = ("symmetric", "unit")


@dataclass(frozen=True)
class Source:
    """A dataset with its train and test part; images are channel-first, ``[n, C, H, W]``."""

    name: str
    x_train: Array
    y_train: Array  # int64
    x_test: Array
    y_test: Array
    classes: int
    groups_train: Array | None = None  # each row's natural client (writer, person, device)
    groups_test: Array | None = None
    levels: float | None = 255.0  # the white level of pixels; None: not pixels, used as they are

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(f"{self.name}: {len(y)} {part} labels should be as many as samples, {len(x)}")
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                raise DataError(
                    f"{self.name}: {part} labels should be within 0..{self.classes - 1}, "
                    f"not {int(y.min())}..{int(y.max())}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])


@dataclass(frozen=True)
class Entry:
    """How a source is found: any one of ``files`` (a folder ends in /) below the data root will do."""

    load: Callable[[str, Path], Source | None]  # None: no file of it is there
    about: str
    files: tuple[str, ...] = ()


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds datasets: the argument, else CLUSTERFL_DATA, else the user's cache folder."""
    chosen = root or os.environ.get("CLUSTERFL_DATA") or platformdirs.user_cache_dir("clusterfl")
    return Path(chosen).expanduser()


def load_source(name: str, root: str | Path | None = None) -> Source:
    """The named dataset; read once per name and folder, then kept in memory."""
    if name not in SOURCES:
        raise ConfigError(f"source={name!r} should be one of the known sources{nearest(name, SOURCES)}")
    return _cached(name, data_root(root))


@lru_cache(maxsize=8)
def _cached(name: str, root: Path) -> Source:
    entry = SOURCES[name]
    found = entry.load(name, root)
    if found is None:
        raise DataError(
            f"source={name!r} should have one of {', '.join(entry.files)} in {root}, but none is there; "
            f"put it there, or set data.root or CLUSTERFL_DATA to the folder that holds it"
        )
    return found


def to_float(x: Array, normalize: str = "symmetric", levels: float | None = 255.0) -> Tensor:
    """float32; pixels become 0..1 ("unit") or, by (x - .5) / .5, -1..1 ("symmetric")."""
    if normalize not in NORMALIZE:
        raise ConfigError(f"normalize={normalize!r} should be a known scale{nearest(normalize, NORMALIZE)}")
    scaled = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if levels is None:
        return scaled
    scaled = scaled / levels
    return scaled if normalize == "unit" else (scaled - 0.5) / 0.5


def channels_first(x: Array) -> Array:
    """Grey [n, H, W] and colour [n, H, W, 3] images as [n, C, H, W]."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] == 3:
        return x.transpose(0, 3, 1, 2)
    raise DataError(f"images of shape {x.shape} should be [n, H, W] or [n, H, W, 3]")


def make_source(
    name: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array, classes: int, **more: Any
) -> Source:
    return Source(
        name,
        channels_first(x_train),
        y_train.astype(np.int64),
        channels_first(x_test),
        y_test.astype(np.int64),
        classes,
        **more,
    )


def split_source(name: str, x: Array, y: Array, classes: int, **more: Any) -> Source:
    """A source without a test part of its own gets a fixed, class-stratified fifth as test."""
    train, test = stratified(y, 0.2, keys.fold_in(keys.key(0), name))
    return make_source(name, x[train], y[train], x[test], y[test], classes, **more)


def find(root: Path, *names: str) -> Path | None:
    """The first of the named files that exists, plain or gzipped."""
    candidates = (root / (name + end) for name in names for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _digits(name: str, root: Path) -> Source:
    from sklearn.datasets import load_digits

    data = load_digits()
    return split_source(name, data.images.astype(np.uint8), data.target, 10, levels=16.0)


def _npz(name: str, root: Path, files: tuple[str, ...], classes: int) -> Source | None:
    path = find(root, *files)
    if path is None:
        return None
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    return make_source(name, x_train, y_train, x_test, y_test, classes)


def _idx(
    name: str,
    root: Path,
    folders: tuple[str, ...],
    classes: int,
    *,
    prefix: str = "",
    test: str = "t10k",
    first_label: int = 0,
    transposed: bool = False,
) -> Source | None:
    """Four IDX files in one folder, under torchvision's names."""
    kinds = "images-idx3-ubyte", "labels-idx1-ubyte"
    files = [f"{prefix}{part}-{kind}" for part in ("train", test) for kind in kinds]
    for folder in folders:
        paths = [find(root / folder, file) for file in files]
        if not any(paths):
            continue
        missing = [file for file, path in zip(files, paths, strict=True) if path is None]
        if missing:
            raise DataError(f"source={name!r}: {root / folder} should also hold {', '.join(missing)}")
        x_train, y_train, x_test, y_test = (read_idx(path) for path in paths if path)
        if transposed:
            x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
        return make_source(
            name,
            x_train,
            y_train.astype(np.int64) - first_label,
            x_test,
            y_test.astype(np.int64) - first_label,
            classes,
        )
    return None


def _npz_or_idx(
    npz: tuple[str, ...], folders: tuple[str, ...], classes: int, about: str, **idx: Any
) -> Entry:
    def load(name: str, root: Path) -> Source | None:
        return _npz(name, root, npz, classes) or _idx(name, root, folders, classes, **idx)

    first = f"{idx.get('prefix', '')}train-images-idx3-ubyte[.gz]"
    return Entry(load, about, (*npz, *(f"{folder}/{first}" for folder in folders)))


def _emnist(split: str, classes: int, npz: tuple[str, ...], about: str, first_label: int = 0) -> Entry:
    # EMNIST's own IDX files hold images transposed
    return _npz_or_idx(
        npz,
        ("EMNIST/raw", "emnist", "gzip", "."),
        classes,
        about,
        prefix=f"emnist-{split}-",
        test="test",
        first_label=first_label,
        transposed=True,
    )


SOURCES: dict[str, Entry] = {
    "digits": Entry(_digits, "scikit-learn's 1,797 digits, 8x8 grey, 10 classes; always there"),
    "mnist": _npz_or_idx(
        ("mnist.npz",), ("MNIST/raw", "mnist", "."), 10, "70,000 digits, 28x28 grey, 10 classes"
    ),
    "fashion_mnist": _npz_or_idx(
        ("fashion_mnist.npz",),
        ("FashionMNIST/raw", "fashion_mnist", "fashion-mnist"),
        10,
        "70,000 pieces of clothing, 28x28 grey, 10 classes",
    ),
    "usps": Entry(
        partial(_npz, files=("usps.npz",), classes=10),
        "9,298 digits of zip codes, 16x16 grey, 10 classes",
        ("usps.npz",),
    ),
    "emnist_letters": _emnist(
        "letters",
        26,
        ("emnist_letters.npz", "emnist_letters_31k5k.npz"),
        "letters, cases merged, 28x28 grey, 26 classes",
        first_label=1,
    ),
}
