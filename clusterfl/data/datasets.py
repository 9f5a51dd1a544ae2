"""One function per dataset: the files it may come in, looked for below a folder. None: nothing is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl.data import formats as readers
from clusterfl.data.source import ImageFiles, Source, find, image_source, split_source
from clusterfl.errors import DataError

Array = npt.NDArray[Any]
PARTS = ("x_train", "y_train", "x_test", "y_test")
LEAF_SIZE = 84  # the side to which LEAF's own CelebA model brings images


def digits(name: str, root: Path) -> Source:
    from sklearn.datasets import load_digits

    data = load_digits()
    return split_source(name, data.images.astype(np.uint8), data.target, 10, levels=16.0)


def npz(name: str, root: Path, files: tuple[str, ...], classes: int) -> Source | None:
    path = find(root, *files)
    if path is None:
        return None
    x_train, y_train, x_test, y_test = readers.read_npz(path, *PARTS)
    return image_source(name, x_train, y_train, x_test, y_test, classes)


def _all_of(name: str, folder: Path, files: list[str]) -> list[Path] | None:
    """The paths of all files, None if none is there; some and not others is an error."""
    paths = [find(folder, file) for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if path is None]
    if len(missing) == len(files):
        return None
    if missing:
        raise DataError(f"source={name!r}: {folder} should also hold {', '.join(missing)}")
    return [path for path in paths if path]


def idx(
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
        paths = _all_of(name, root / folder, files)
        if paths:
            x_train, y_train, x_test, y_test = (readers.read_idx(path) for path in paths)
            if transposed:
                x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
            y_train, y_test = (y.astype(np.int64) - first_label for y in (y_train, y_test))
            return image_source(name, x_train, y_train, x_test, y_test, classes)
    return None


def usps(name: str, root: Path) -> Source | None:
    for folder in (root, root / "USPS", root / "usps"):
        paths = _all_of(name, folder, ["usps.bz2", "usps.t.bz2"])
        if paths:
            (x_train, y_train), (x_test, y_test) = map(readers.read_usps, paths)
            return image_source(name, x_train, y_train, x_test, y_test, 10)
    return npz(name, root, ("usps.npz",), 10)


def cifar(
    name: str, root: Path, batches: tuple[str, ...], test: str, labels: bytes, classes: int, files: tuple[str, ...]
) -> Source | None:
    """The official python batches (in the folder their archive unpacks to), else an npz file."""
    paths = _all_of(name, root, [*batches, test])
    if paths is None:
        return npz(name, root, files, classes)
    read = [readers.read_cifar(path, labels) for path in paths]
    x_train = np.concatenate([x for x, _ in read[:-1]])
    y_train = np.concatenate([y for _, y in read[:-1]])
    return image_source(name, x_train, y_train, *read[-1], classes)


def svhn(name: str, root: Path) -> Source | None:
    for folder in (root, root / "SVHN", root / "svhn"):
        paths = _all_of(name, folder, ["train_32x32.mat", "test_32x32.mat"])
        if paths:
            (x_train, y_train), (x_test, y_test) = map(readers.read_svhn, paths)
            return image_source(name, x_train, y_train, x_test, y_test, 10)
    return npz(name, root, ("svhn_12k4k.npz", "svhn.npz"), 10)


def sign(name: str, root: Path) -> Source | None:
    path = find(root, "sign_language_digits.npz")
    if path is None:
        return None
    x, y = readers.read_npz(path, "x", "y")
    return split_source(name, x, y, 10)


def leaf_parts(root: Path, dataset: str) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Users of LEAF's json files: its train/ and test/ folders, else all_data (and then no test part)."""

    def users(folder: Path, pattern: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted(folder.glob(pattern)):
            found.update(readers.read_leaf(path))
        return found

    for base in (root / dataset / "data", root / dataset):
        train, test = users(base / "train", "*.json"), users(base / "test", "*.json")
        if train and test:
            return train, test
        whole = users(base / "all_data", "*.json") or users(base, "all_data*.json")
        if whole:
            return whole, None
    return None


def _stack(users: dict[str, Any], ids: dict[str, int]) -> tuple[list[Any], Array, Array]:
    """All users' samples one after another, with labels and user ids."""
    x = [sample for user in users for sample in users[user][0]]
    y = np.array([label for user in users for label in users[user][1]], dtype=np.int64)
    counts = [len(users[user][1]) for user in users]
    return x, y, np.repeat([ids[user] for user in users], counts).astype(np.int64)


def femnist(name: str, root: Path) -> Source | None:
    path = find(root, "femnist_105writers.npz", "femnist.npz")
    if path is not None:
        *parts, train, test = readers.read_npz(path, *PARTS, "writer_train", "writer_test")
        x_train, y_train, x_test, y_test = parts
        names = tuple(f"writer-{i}" for i in range(int(max(train.max(), test.max())) + 1))
        return image_source(
            name, x_train, y_train, x_test, y_test, 62, groups_train=train, groups_test=test, group_names=names
        )
    found = leaf_parts(root, "femnist")
    if found is None:
        return None
    train_users, test_users = found
    ids = {user: i for i, user in enumerate(sorted({*train_users, *(test_users or {})}))}
    sides = []
    for users in (train_users, test_users or {}):
        x, y, groups = _stack(users, ids)
        pixels = np.rint(np.asarray(x, dtype=np.float32).reshape(-1, 28, 28) * 255).astype(np.uint8)
        sides.append((pixels, y, groups))
    (x_train, y_train, train), (x_test, y_test, test) = sides
    return image_source(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        62,
        groups_train=train,
        groups_test=test if test_users else None,
        group_names=tuple(ids),
    )


def celeba(name: str, root: Path) -> Source | None:
    """People's faces and whether they smile; images are opened only when a client holds them."""
    found = leaf_parts(root, "celeba")
    if found is None:
        return None
    folders = (root / "celeba" / "data" / "raw" / "img_align_celeba", root / "celeba" / "img_align_celeba")
    images = next((folder for folder in folders if folder.is_dir()), None)
    if images is None:
        raise DataError(f"source={name!r} should have its images in {folders[0]}; unpack img_align_celeba there")
    train_users, test_users = found
    ids = {user: i for i, user in enumerate(sorted({*train_users, *(test_users or {})}))}
    sides = []
    for users in (train_users, test_users or {}):
        files, y, groups = _stack(users, ids)
        paths = np.array([str(images / Path(file).name) for file in files], dtype=np.str_)
        sides.append((ImageFiles(paths, LEAF_SIZE), y, groups))
    (x_train, y_train, train), (x_test, y_test, test) = sides
    return Source(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        2,
        groups_train=train,
        groups_test=test if test_users else None,
        group_names=tuple(ids),
    )
