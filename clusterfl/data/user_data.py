"""A user's own data, split by client already: a folder of npz files, or one table with a client column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl.data.formats import names_the_file, npz_names, read_npz
from clusterfl.data.source import Source, channels_first
from clusterfl.errors import DataError, suggestion

Array = npt.NDArray[Any]
PREFIXES = ("folder:", "table:")


def load(name: str, root: Path, *, regression: bool = False) -> Source:
    """``folder:PATH`` or ``table:PATH``; a relative path is looked up here and then in the data root."""
    kind, _, where = name.partition(":")
    given = Path(where).expanduser()
    path = given if given.exists() else root / given
    if kind == "folder":
        if not path.is_dir():
            raise DataError(f"source={name!r} should name a folder with one .npz file per client")
        return load_folder(path, regression=regression)
    if not path.is_file():
        raise DataError(f"source={name!r} should name a .csv or .parquet file")
    return load_table(path, regression=regression)


def load_folder(path: Path, *, regression: bool = False) -> Source:
    """One client per .npz file, in the order of their names.

    A file holds x and y, or x_train, y_train, x_test and y_test. Bytes are pixels, [n, H, W], [n, H, W, 3] or
    [n, C, H, W]; floats are used as they are.
    """
    files = sorted(path.glob("*.npz"))
    if not files:
        raise DataError(f"{path} should hold one .npz file per client, but has none")
    tested = "x_test" in npz_names(files[0])
    names = ("x_train", "y_train", "x_test", "y_test") if tested else ("x", "y")
    read = [read_npz(file, *names) for file in files]
    for file, arrays in zip(files, read, strict=True):
        for x, y in zip(arrays[::2], arrays[1::2], strict=True):
            if x.shape[1:] != read[0][0].shape[1:] or x.dtype != read[0][0].dtype:
                raise DataError(
                    f"{file}: samples of shape {x.shape[1:]} and type {x.dtype} should be like those of "
                    f"{files[0].name}, {read[0][0].shape[1:]} and {read[0][0].dtype}"
                )
            if len(x) != len(y) or (y.ndim != 1 and not regression):
                raise DataError(f"{file}: labels of shape {y.shape} should be one per sample, ({len(x)},)")
            if regression:
                check_numbers(y, f"{file}: targets")
                continue
            check_classes(y, f"{file}: labels")
            if not np.array_equal(y, y.astype(np.int64)) or (len(y) and y.min() < 0):
                raise DataError(f"{file}: labels should be whole numbers from 0")
    kind = np.float32 if regression else np.int64
    x_train, y_train, groups_train = _stack([(a[0], a[1]) for a in read], kind)
    x_test, y_test, groups_test = _stack([(a[2], a[3]) if tested else (a[0][:0], a[1][:0]) for a in read], kind)
    return Source(
        path.name,
        x_train,
        y_train,
        x_test,
        y_test,
        0 if regression else int(max(y.max() for y in (y_train, y_test) if len(y))) + 1,
        groups_train=groups_train,
        groups_test=groups_test if tested else None,
        levels=255.0 if x_train.dtype == np.uint8 else None,
    )


def check_classes(y: Array, what: str) -> None:
    """Numbers with a fraction are no classes: they would be cut off, or each be a class of its own."""
    parts = y[np.isfinite(y) & (y != np.floor(y))] if y.dtype.kind == "f" else y[:0]
    if len(parts):
        raise DataError(
            f"{what} should be whole numbers from 0, or words, not {parts[0]:g}; for targets that are numbers set "
            "loss = 'mse' in [task] (--set task.loss=mse)"
        )


def check_numbers(y: Array, what: str) -> None:
    if y.dtype.kind not in "biuf":
        raise DataError(f"{what} should be numbers for a loss of numbers; use the loss 'cross-entropy' for classes")
    if not np.isfinite(y).all():
        raise DataError(f"{what} should be finite numbers")


def _stack(parts: list[tuple[Array, Array]], kind: Any) -> tuple[Array, Array, Array]:
    x = np.concatenate([x for x, _ in parts])
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] != 3)):
        x = channels_first(x)
    elif x.dtype != np.uint8:
        x = x.astype(np.float32)
    y = np.concatenate([y for _, y in parts]).astype(kind)
    return x, y, np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])


@names_the_file
def _read_table(path: Path) -> Any:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    if path.suffix == ".csv":
        from pyarrow import csv

        return csv.read_csv(path)
    raise ValueError("its name ends neither in .csv nor in .parquet")


def load_table(path: Path, *, regression: bool = False) -> Source:
    """Columns ``client`` and ``label``, optionally ``split`` ("train" or "test"); all others are features."""
    table = _read_table(path)
    for name in table.column_names:
        if table[name].null_count:
            raise DataError(f"{path}: column {name!r} should have no missing values; fill or remove them")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    for wanted in ("client", "label"):
        if wanted not in columns:
            raise DataError(f"{path}: a column {wanted!r} should be there{suggestion(wanted, columns)}")
    features = [name for name in columns if name not in ("client", "label", "split")]
    if not features:
        raise DataError(f"{path}: there should be feature columns beside client, label and split")
    for name in features:
        if columns[name].dtype.kind not in "buif":
            raise DataError(f"{path}: column {name!r} should be numbers; encode or remove it")
        if not np.isfinite(columns[name].astype(np.float64)).all():
            raise DataError(f"{path}: column {name!r} should hold finite numbers only")
    x = np.stack([columns[name].astype(np.float32) for name in features], 1)
    label = columns["label"]
    if regression:
        check_numbers(label, f"{path}: column 'label'")
        classes, y = 0, label.astype(np.float32)
    else:
        check_classes(label, f"{path}: labels")
        labels, y = np.unique(label.astype(str) if label.dtype.kind == "O" else label, return_inverse=True)
        classes = len(labels)
    _, groups = np.unique(columns["client"].astype(str), return_inverse=True)
    test = np.zeros(len(y), dtype=bool)
    if "split" in columns:
        words = columns["split"].astype(str)
        if not np.isin(words, ["train", "test"]).all():
            raise DataError(f"{path}: column 'split' should hold only 'train' and 'test'")
        test = words == "test"
    return Source(
        path.stem,
        x[~test],
        y[~test],
        x[test],
        y[test],
        classes,
        groups_train=groups[~test],
        groups_test=groups[test] if test.any() else None,
        levels=None,
    )
