"""Where samples come from: datasets by name, the folder that holds them, and several joined into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from clusterfl.data import datasets as loaders
from clusterfl.data import user_data as own
from clusterfl.data.source import NORMALIZE, Samples, Source, to_float
from clusterfl.data.user_data import Reading
from clusterfl.data_root import data_root
from clusterfl.errors import ConfigError, DataError, suggestion

__all__ = ["NORMALIZE", "SOURCES", "Entry", "Source", "data_root", "load_source", "names_in", "to_float"]

Array = npt.NDArray[Any]
MULTI_SOURCE = ("mnist", "usps", "svhn", "sign")  # MD-ICFL's four kinds of digits
JOINED = (1, 28, 28)  # the shape that joined sources are brought to


@dataclass(frozen=True)
class Entry:
    """How a source is found: any one of ``files`` below the data root will do."""

    load: Callable[[str, Path], Source | None]  # None: no file of it is there
    about: str
    files: tuple[str, ...] = ()
    natural: bool = False  # it comes split by client


def names_in(name: str) -> tuple[str, ...]:
    """The datasets that a source is made of: "mnist+usps" is two, "multi_source" is four."""
    if is_own(name):
        return (name,)
    return tuple(part for word in name.split("+") for part in (MULTI_SOURCE if word == "multi_source" else (word,)))


def is_natural(name: str) -> bool:
    """Whether the source comes split by client."""
    return is_own(name) or (name in SOURCES and SOURCES[name].natural)


def is_own(name: str) -> bool:
    """Whether the source is a user's folder, table or function."""
    return name.startswith(own.PREFIXES) or own.is_function(name)


def load_source(name: str, root: str | Path | None = None, reading: Reading | None = None) -> Source:
    """The named dataset, or several joined by "+"; read once per name and folder, then kept in memory.

    A user's own folder or table is read, and a function called, each time, as ``reading`` says.
    """
    if is_own(name):
        return own.load(name, data_root(root), reading)
    names = names_in(name)
    for part in names:
        if part not in SOURCES:
            raise ConfigError(f"source={part!r} should be one of the known sources{suggestion(part, SOURCES)}")
    return _cached(names[0], data_root(root)) if len(names) == 1 else _joined(names, data_root(root))


@lru_cache(maxsize=8)
def _cached(name: str, root: Path) -> Source:
    entry = SOURCES[name]
    found = entry.load(name, root)
    if found is None:
        raise DataError(
            f"source={name!r} should have one of {', '.join(entry.files)} in {root}, but none is there; put it "
            f"there, set data.root or CLUSTERFL_DATA to the folder that holds it, or use "
            f"clusterfl.data.download({name!r}) where there is a network"
        )
    return found


@lru_cache(maxsize=2)
def _joined(names: tuple[str, ...], root: Path) -> Source:
    parts = [_cached(name, root) for name in names]

    def stack(arrays: Sequence[Array]) -> tuple[Array, Array]:
        return np.concatenate(arrays), np.repeat(np.arange(len(arrays)), [len(a) for a in arrays])

    x_train, domains_train = stack([to_grey(p.x_train, p.levels) for p in parts])
    x_test, domains_test = stack([to_grey(p.x_test, p.levels) for p in parts])
    return Source(
        "+".join(names),
        x_train,
        np.concatenate([p.y_train for p in parts]),
        x_test,
        np.concatenate([p.y_test for p in parts]),
        max(p.classes for p in parts),
        domains_train=domains_train,
        domains_test=domains_test,
    )


def to_grey(x: Samples, levels: float | None) -> Array:
    """Images as grey bytes of 28x28: luma of colours, antialiased bilinear resize."""
    if levels is None or len(x.shape) != 4 or not isinstance(x, np.ndarray):
        raise DataError(f"joined sources should be images in memory, not samples of shape {tuple(x.shape[1:])}")
    if x.shape[1:] == JOINED and levels == 255:
        return x
    out = np.empty((len(x), *JOINED), dtype=np.uint8)
    for start in range(0, len(x), 4096):
        part = torch.from_numpy(np.array(x[start : start + 4096], dtype=np.float32)) * (255 / levels)
        if part.shape[1] == 3:
            part = (part * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
        part = F.interpolate(part, JOINED[1:], mode="bilinear", antialias=True, align_corners=False)
        out[start : start + 4096] = part.round().clamp(0, 255).numpy()
    return out


def _npz_or_idx(npz: tuple[str, ...], folders: tuple[str, ...], classes: int, about: str, **idx: Any) -> Entry:
    def load(name: str, root: Path) -> Source | None:
        return loaders.npz(name, root, npz, classes) or loaders.idx(name, root, folders, classes, **idx)

    first = f"{idx.get('prefix', '')}train-images-idx3-ubyte[.gz]"
    return Entry(load, about, (*npz, *(f"{folder}/{first}" for folder in folders)))


def _emnist(split: str, classes: int, npz: tuple[str, ...], about: str, first_label: int = 0) -> Entry:
    # EMNIST's own IDX files hold images transposed
    folders = ("EMNIST/raw", "EMNIST/raw/gzip", "emnist", "gzip", ".")
    return _npz_or_idx(
        npz,
        folders,
        classes,
        about,
        prefix=f"emnist-{split}-",
        test="test",
        first_label=first_label,
        transposed=True,
    )


def _cifar(
    folder: str, batches: tuple[str, ...], test: str, labels: bytes, classes: int, npz: tuple[str, ...]
) -> Entry:
    load = partial(
        loaders.cifar,
        batches=tuple(f"{folder}/{b}" for b in batches),
        test=f"{folder}/{test}",
        labels=labels,
        classes=classes,
        files=npz,
    )
    return Entry(load, f"32x32 colour photographs, {classes} classes", (*npz, f"{folder}/{batches[0]}"))


SOURCES: dict[str, Entry] = {
    "digits": Entry(loaders.digits, "scikit-learn's 1,797 digits, 8x8 grey, 10 classes; always there"),
    "mnist": _npz_or_idx(("mnist.npz",), ("MNIST/raw", "mnist", "."), 10, "70,000 digits, 28x28 grey, 10 classes"),
    "fashion_mnist": _npz_or_idx(
        ("fashion_mnist.npz",),
        ("FashionMNIST/raw", "fashion_mnist", "fashion-mnist"),
        10,
        "70,000 pieces of clothing, 28x28 grey, 10 classes",
    ),
    "usps": Entry(
        loaders.usps, "9,298 digits of zip codes, 16x16 grey, 10 classes", ("usps.npz", "usps.bz2 and usps.t.bz2")
    ),
    "svhn": Entry(
        loaders.svhn,
        "house numbers, 32x32 colour, 10 classes",
        ("train_32x32.mat and test_32x32.mat", "svhn_12k4k.npz"),
    ),
    "sign": Entry(loaders.sign, "2,062 hands that sign a digit, 64x64 grey, 10 classes", ("sign_language_digits.npz",)),
    "emnist_letters": _emnist(
        "letters",
        26,
        ("emnist_letters.npz", "emnist_letters_31k5k.npz"),
        "letters, cases merged, 28x28 grey, 26 classes",
        first_label=1,
    ),
    "emnist_balanced": _emnist(
        "balanced", 47, ("emnist_balanced.npz",), "131,600 letters and digits, 28x28 grey, 47 classes"
    ),
    "emnist_byclass": _emnist(
        "byclass", 62, ("emnist_byclass.npz",), "814,255 letters and digits, 28x28 grey, 62 classes"
    ),
    "cifar10": _cifar(
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        b"labels",
        10,
        ("cifar10.npz", "cifar10_10k2k.npz"),
    ),
    "cifar100": _cifar("cifar-100-python", ("train",), "test", b"fine_labels", 100, ("cifar100.npz",)),
    "femnist": Entry(
        loaders.femnist,
        "LEAF's letters and digits by writer, 28x28, 62 classes, black on white",
        ("femnist_105writers.npz", "femnist/data/train/*.json and test/", "femnist/data/all_data/*.json"),
        natural=True,
    ),
    "celeba": Entry(
        loaders.celeba,
        "LEAF's faces by person, 84x84 colour, smiling or not",
        ("celeba/data/train/*.json and test/", "celeba/data/all_data/*.json"),
        natural=True,
    ),
}
