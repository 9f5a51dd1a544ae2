"""What a dataset is once it has been read: arrays of samples and labels, and who they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data.labels import MOST_CLASSES
from clusterfl.data.partition import stratified
from clusterfl.errors import ConfigError, DataError, suggestion

Array = npt.NDArray[Any]
NORMALIZE = ("symmetric", "unit")


@dataclass(frozen=True)
class ImageFiles:
    """Colour images that stay on disk until their rows are asked for, as ``[n, 3, size, size]`` bytes."""

    paths: Array  # of str
    size: int

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), 3, self.size, self.size)

    def __getitem__(self, rows: Array) -> Array:
        try:
            from PIL import Image
        except ImportError as error:
            raise DataError("reading image files should have Pillow installed: pip install pillow") from error
        out = np.empty((len(self.paths[rows]), *self.shape[1:]), dtype=np.uint8)
        for i, path in enumerate(self.paths[rows]):
            try:
                with Image.open(path) as image:
                    small = image.convert("RGB").resize((self.size, self.size))
            except OSError as error:
                raise DataError(f"{path} should be a readable image, but {error}; get it again") from error
            out[i] = np.asarray(small).transpose(2, 0, 1)
        return out


Samples = Array | ImageFiles


@dataclass(frozen=True)
class Source:
    """A dataset with its train and test part; images are channel-first, ``[n, C, H, W]``."""

    name: str
    x_train: Samples
    y_train: Array  # int64 classes, or float32 numbers of any shape
    x_test: Samples
    y_test: Array
    classes: int  # 0: targets are numbers
    groups_train: Array | None = None  # each row's natural client (writer, person, device), from 0
    groups_test: Array | None = None
    domains_train: Array | None = None  # each row's dataset, where several were joined
    domains_test: Array | None = None
    group_truth: Array | None = None  # each natural client's true cluster, where it is known
    levels: float | None = 255.0  # the white level of pixels; None: not pixels, used as they are
    group_names: tuple[str, ...] | None = None  # of the natural clients
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None  # columns of a table
    categories: Mapping[str, tuple[str, ...]] | None = None  # the words that columns of words may hold
    own: bool = False  # a user's: its clients keep their order, and all of them are used

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(f"{self.name}: {len(y)} {part} labels should be as many as samples, {len(x)}")
            if isinstance(x, np.ndarray) and x.dtype.kind not in "biuf":
                raise DataError(f"{self.name}: {part} samples should be real numbers, not {x.dtype}")
            if self.classes > MOST_CLASSES:
                raise DataError(f"{self.name}: labels up to {self.classes - 1} should be below {MOST_CLASSES}")
            if not self.classes:
                if not np.isfinite(y).all():
                    raise DataError(f"{self.name}: {part} targets should be finite numbers")
            elif len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                raise DataError(
                    f"{self.name}: {part} labels should be within 0..{self.classes - 1}, "
                    f"not {int(y.min())}..{int(y.max())}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    @property
    def domains(self) -> int:
        return 1 if self.domains_train is None else int(self.domains_train.max()) + 1

    def both_parts(self) -> tuple[Samples, Array]:
        """Train and test rows as one pool."""
        y = np.concatenate([self.y_train, self.y_test])
        if isinstance(self.x_train, ImageFiles) or isinstance(self.x_test, ImageFiles):
            assert isinstance(self.x_train, ImageFiles) and isinstance(self.x_test, ImageFiles)
            return ImageFiles(np.concatenate([self.x_train.paths, self.x_test.paths]), self.x_train.size), y
        return np.concatenate([self.x_train, self.x_test]), y


def to_float(x: Array, normalize: str = "symmetric", levels: float | None = 255.0) -> Tensor:
    """float32; pixels become 0..1 ("unit") or, by (x - .5) / .5, -1..1 ("symmetric")."""
    if normalize not in NORMALIZE:
        raise ConfigError(f"normalize={normalize!r} should be a known scale{suggestion(normalize, NORMALIZE)}")
    scaled = torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
    if levels is not None:
        scaled.div_(levels)
        if normalize == "symmetric":
            scaled.sub_(0.5).div_(0.5)
    return scaled


def channels_first(x: Array) -> Array:
    """Grey [n, H, W] and colour [n, H, W, 3] images as [n, C, H, W]."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] == 3:
        return x.transpose(0, 3, 1, 2)
    raise DataError(f"images of shape {x.shape} should be [n, H, W] or [n, H, W, 3]")


def image_source(
    name: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array, classes: int, **more: Any
) -> Source:
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    return Source(name, channels_first(x_train), y_train, channels_first(x_test), y_test, classes, **more)


def split_source(name: str, x: Array, y: Array, classes: int, **more: Any) -> Source:
    """Images without a test part of their own get a fixed, class-stratified fifth as test."""
    train, test = stratified(y, 0.2, keys.fold_in(keys.key(0), name))
    return image_source(name, x[train], y[train], x[test], y[test], classes, **more)


def find(root: Path, *names: str) -> Path | None:
    """The first of the named files that exists, plain or gzipped."""
    candidates = (root / (name + end) for name in names for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)
