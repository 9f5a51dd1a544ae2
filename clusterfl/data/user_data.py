"""A user's own data, split by client already: a folder of npz files, one table with a client column, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl.data import user_tables
from clusterfl.data.formats import npz_names, read_npz
from clusterfl.data.labels import class_numbers, code_labels, finite, finite_numbers
from clusterfl.data.source import Source, channels_first
from clusterfl.errors import DataError, closest, suggestion
from clusterfl.outside import is_outside, load_function

Array = npt.NDArray[Any]
PREFIXES = ("folder:", "table:")


@dataclass(frozen=True)
class Reading:
    """How own data is read: the columns of a table, and what an earlier run knows about classes and categories."""

    client: str | None = None  # unset: "client"
    label: str | None = None  # unset: "label"
    features: tuple[str, ...] | None = None  # unset: all other columns
    categorical: tuple[str, ...] | None = None  # of the features: columns of words
    classes: tuple[str, ...] | None = None  # unset: those that occur
    categories: Mapping[str, tuple[str, ...]] | None = None  # of columns of words; unset: those that occur
    numbers: bool = False  # targets are numbers, not classes
    labelled: bool = True  # False: newcomers' samples alone, which count as of class 0


def is_function(name: str) -> bool:
    """Whether a source is a function of the user's own code."""
    return is_outside(name) and not name.startswith(PREFIXES)


def load(name: str, root: Path, reading: Reading | None = None) -> Source:
    """``folder:PATH`` or ``table:PATH``; a relative path is looked up here and then in the data root. Or
    ``mine.py:function``, which is called."""
    reading = reading or Reading()
    if is_function(name):
        return call_function(name, reading)
    if name.startswith("folder:"):
        return load_folder(place(name, root), reading)
    return load_table(place(name, root), reading)


def lacks_labels(name: str, root: Path, label: str | None = None, features: Sequence[str] = ()) -> bool:
    """Whether clients of one's own data come without labels; refused where some have them and some do not, or where a
    column that is none of the ``features`` looks like a misspelt one."""
    if is_function(name):
        found = [not isinstance(arrays, list | tuple) for arrays in returned(name).values()]
    elif name.startswith("folder:"):
        found = [not {"y", "y_train"} & {*npz_names(file)} for file in files_in(place(name, root))]
    else:
        column, columns = label or "label", [*user_tables.read_columns(place(name, root))]
        found = [column not in columns]
        if found[0] and (near := closest(column, sorted({*columns} - {*features}), cutoff=0.75)):
            raise DataError(
                f"{name!r} has no column {column!r}, but {near!r}: rename it, or leave it out if it is none"
            )
    if len(set(found)) > 1:
        raise DataError(f"{name!r} should have labels for all clients or for none")
    return found[0]


def place(name: str, root: Path) -> Path:
    """The folder or file that is meant."""
    kind, _, where = name.partition(":")
    given = Path(where).expanduser()
    path = given if given.exists() else root / given
    if kind == "folder" and not path.is_dir():
        raise DataError(f"source={name!r} should name a folder with one .npz file per client")
    if kind == "table" and not path.is_file():
        raise DataError(f"source={name!r} should name a .csv or .parquet file")
    return path


def load_folder(path: Path, reading: Reading) -> Source:
    """One client per .npz file, in the order of their names.

    A file holds x and y, or x_train, y_train, x_test and y_test. Bytes are pixels, [n, H, W], [n, H, W, 3] or
    [n, C, H, W]; floats are used as they are. Labels are class numbers from 0, or text.
    """
    files = files_in(path)
    names = ("x_train", "y_train", "x_test", "y_test") if "x_test" in npz_names(files[0]) else ("x", "y")
    if reading.labelled:
        clients = {file.stem: read_npz(file, *names) for file in files}
    else:
        clients = {file.stem: without_labels(*read_npz(file, names[0])) for file in files}
    return of_clients(path.name, clients, [str(file) for file in files], reading)


def files_in(path: Path) -> list[Path]:
    """The clients' files."""
    files = sorted(path.glob("*.npz"))
    if not files:
        raise DataError(f"{path} should hold one .npz file per client, but has none")
    return files


def without_labels(x: Array) -> tuple[Array, Array]:
    """Samples that count as of class 0."""
    return x, np.zeros(len(x), dtype=np.int64)


def returned(reference: str) -> Mapping[Any, Any]:
    """What a function of the user's returns: clients by name."""
    function = load_function(reference, "that returns a dict of clients")
    try:
        found = function()
    except Exception as e:
        raise DataError(f"{reference!r} should be callable without arguments, but {type(e).__name__}: {e}") from e
    if not isinstance(found, Mapping) or not found:
        raise DataError(f"{reference!r} should return a dict from clients' names to (x, y), not {type(found).__name__}")
    return found


def call_function(reference: str, reading: Reading) -> Source:
    """A function of the user's that returns clients by name, each with the arrays that a file of a folder holds."""
    clients: dict[str, tuple[Array, ...]] = {}
    for name, arrays in returned(reference).items():
        if not reading.labelled:
            x = np.asarray(arrays)
            if x.ndim < 2 or x.dtype == object:
                raise DataError(f"{reference!r} should return an array of samples, or (x, y), for client {str(name)!r}")
            clients[str(name)] = without_labels(x)
            continue
        if not isinstance(arrays, list | tuple) or len(arrays) not in (2, 4) or not all(map(np.ndim, arrays)):
            raise DataError(
                f"{reference!r} should return (x, y) or (x_train, y_train, x_test, y_test) for client {str(name)!r}"
            )
        clients[str(name)] = tuple(np.asarray(a) for a in arrays)
    lengths = {len(arrays) for arrays in clients.values()}
    if len(lengths) > 1:
        raise DataError(f"{reference!r} should return test samples for all clients or for none")
    name = reference.rpartition("/")[2]
    return of_clients(name, clients, [f"{name}, client {client}" for client in clients], reading)


def of_clients(name: str, clients: Mapping[str, Sequence[Array]], places: list[str], reading: Reading) -> Source:
    """Clients that each bring x and y, or x_train, y_train, x_test and y_test; ``places`` name them in errors."""
    read = list(clients.values())
    tested = len(read[0]) == 4
    for place, arrays in zip(places, read, strict=True):
        for x, y in zip(arrays[::2], arrays[1::2], strict=True):
            if x.shape[1:] != read[0][0].shape[1:] or x.dtype != read[0][0].dtype:
                raise DataError(
                    f"{place}: samples of shape {x.shape[1:]} and type {x.dtype} should be like those of "
                    f"{Path(places[0]).name}, {read[0][0].shape[1:]} and {read[0][0].dtype}"
                )
            if len(x) != len(y) or (y.ndim != 1 and not reading.numbers):
                raise DataError(f"{place}: labels of shape {y.shape} should be one per sample, ({len(x)},)")
            finite(x, _row_of(place))
    parts = [(a[0], a[1]) for a in read] + [(a[2], a[3]) if tested else (a[0][:0], a[1][:0]) for a in read]
    where = [_row_of(place) for place in places] * 2
    if not reading.labelled:
        kind = np.float32 if reading.numbers else np.int64
        coded, class_names = [y.astype(kind) for _, y in parts], reading.classes
    elif reading.numbers:
        coded, class_names = [finite_numbers(y, at) for (_, y), at in zip(parts, where, strict=True)], None
    else:
        coded, class_names = _classes([y for _, y in parts], where, reading.classes)
    n = len(read)
    x_train, y_train, groups_train = _stack([x for x, _ in parts[:n]], coded[:n])
    x_test, y_test, groups_test = _stack([x for x, _ in parts[n:]], coded[n:])
    found = int(max((y.max() for y in coded if len(y)), default=-1)) + 1  # of classes
    return Source(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        0 if reading.numbers else found if class_names is None else len(class_names),
        groups_train=groups_train,
        groups_test=groups_test if tested else None,
        levels=255.0 if x_train.dtype == np.uint8 else None,
        group_names=tuple(clients),
        class_names=class_names,
        own=True,
    )


def _classes(
    labels: list[Array], where: list[Callable[[int], str]], known: tuple[str, ...] | None
) -> tuple[list[Array], tuple[str, ...] | None]:
    """Labels coded alike for everybody: class numbers stay as they are unless there are known names."""
    if known is None and all(y.dtype.kind in "biuf" for y in labels):
        return [class_numbers(y, at) for y, at in zip(labels, where, strict=True)], None
    if known is None:
        known = tuple(sorted({str(v) for y in labels for v in y.tolist()}))
    return [code_labels(y, at, known)[0] for y, at in zip(labels, where, strict=True)], known


def _row_of(place: str) -> Callable[[int], str]:
    return lambda row: f"{place}, row {row}"


def _stack(xs: list[Array], ys: list[Array]) -> tuple[Array, Array, Array]:
    x = pixels_or_floats(np.concatenate(xs))
    return x, np.concatenate(ys), np.repeat(np.arange(len(ys)), [len(y) for y in ys])


def pixels_or_floats(x: Array) -> Array:
    """Bytes are images, channels first; everything else is float32."""
    if x.dtype != np.uint8:
        return x.astype(np.float32)
    return channels_first(x) if x.ndim == 3 or (x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] != 3) else x


def read_samples(
    path: Path, features: tuple[str, ...] | None, categories: Mapping[str, Sequence[str]] | None = None
) -> Array:
    """Samples alone, to be predicted: the feature columns of a table by name, or x of an .npz file."""
    if path.suffix == ".npz":
        (x,) = read_npz(path, "x")
        finite(x, _row_of(str(path)))
        return x
    columns = user_tables.read_columns(path)
    words = {name: tuple(known) for name, known in (categories or {}).items()}
    if features is None:
        names = user_tables.other_columns(path, columns, "client", "label")
    else:
        names = user_tables.columns_behind(features, words)
    return user_tables.coded_features(path, columns, names, words)[0]


def load_table(path: Path, reading: Reading) -> Source:
    """A column of clients and one of labels, optionally ``split`` ("train" or "test"), and numbers as features."""
    client, label = reading.client or "client", reading.label or "label"
    columns = user_tables.read_columns(path, client)
    column = user_tables.wanted(path, columns, client, "data.client_column")
    names, groups = first_seen(user_tables.texts(path, client, column))

    def whose(row: int) -> str:
        return names[int(groups[row])]

    if reading.labelled:
        column = user_tables.wanted(path, columns, label, "data.label_column")
        y, class_names = user_tables.labels(path, label, column, reading.classes, numbers=reading.numbers, whose=whose)
    else:
        y, class_names = np.zeros(len(groups), np.float32 if reading.numbers else np.int64), reading.classes
    names_of = reading.features or user_tables.other_columns(path, columns, client, label)
    known = reading.categories or {}
    for name in reading.categorical or ():
        if name not in names_of:
            raise DataError(f"{path}: categorical={name!r} should be a feature column{suggestion(name, names_of)}")
    words = {name: known.get(name) for name in reading.categorical or ()}
    x, features, categories = user_tables.coded_features(path, columns, names_of, words, whose)
    split = reading.labelled and "split" not in names_of
    test = user_tables.test_rows(path, columns, len(y)) if split else np.zeros(len(y), dtype=bool)
    return Source(
        path.stem,
        x[~test],
        y[~test],
        x[test],
        y[test],
        len(class_names or ()),
        groups_train=groups[~test],
        groups_test=groups[test] if test.any() else None,
        levels=None,
        group_names=names,
        class_names=class_names,
        feature_names=features,
        categories=categories or None,
        own=True,
    )


def first_seen(words: Array) -> tuple[tuple[str, ...], Array]:
    """The distinct words in the order in which they first occur, and each row's number among them."""
    found, first, codes = np.unique(words, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return tuple(str(w) for w in found[order]), place[codes]
