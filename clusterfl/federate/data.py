"""A node's own data, read on the node: a file, a function of the user's, or a part of a config's population."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clusterfl import keys
from clusterfl.data import user_tables
from clusterfl.data.formats import npz_names, read_npz
from clusterfl.data.labels import code_labels, finite_numbers
from clusterfl.data.population import Population
from clusterfl.data.source import channels_first, to_float
from clusterfl.data.user_data import read_samples
from clusterfl.engines.flower.messages import Reading
from clusterfl.engines.flower.node import OwnData
from clusterfl.errors import ConfigError, DataError, suggestion
from clusterfl.outside import is_outside, load_function, only

TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Where:
    """Where a node's data is, as its start script says.

    ``data``: a ``.npz``, ``.csv`` or ``.parquet`` file, a folder that has the node's own ``NAME.npz``,
    ``mine.py:function`` or ``module:function``, or ``list`` for client number ``index`` of the config's own population
    (a demonstration).
    """

    name: str
    data: str
    config: str = ""
    index: int = 0

    @property
    def path(self) -> Path:
        """The file that is read."""
        given = Path(self.config if self.data == "list" else self.data).expanduser()
        return given / f"{self.name}.npz" if given.is_dir() else given


def load(where: Where, reading: Reading) -> OwnData:
    """The node's samples, its own test part held out if they come without one; a file is read again when it changes."""
    return _load(where, reading, where.path.stat().st_mtime_ns if where.path.is_file() else 0)


@lru_cache(maxsize=1)
def _load(where: Where, reading: Reading, changed: int) -> OwnData:
    if where.data == "list":
        return _of_config(Path(where.config), where.index)
    path = where.path
    if path.suffix == ".npz":
        return own_data(where.name, str(path), _npz(path), reading)
    if path.suffix in TABLES:
        parts, columns, words = _table(path, where.name, reading)
        return replace(own_data(where.name, str(path), parts, reading), columns=columns, words=words)
    if is_outside(where.data):
        return own_data(where.name, where.data, _called(where.data, where.name), reading)
    raise DataError(
        f"data={where.data!r} should be a .npz, .csv or .parquet file, a folder, mine.py:function, or 'list' for a demo"
    )


def own_data(name: str, where: str, parts: dict[str, Any], reading: Reading) -> OwnData:
    """Arrays x and y, or x_train, y_train, x_test and y_test, as a node's data."""
    if "x" in parts:
        x, y = _checked(where, parts["x"], parts["y"])
        order = keys.permutation(keys.fold_in(keys.key(0), "node", name), len(y)).numpy()
        cut = min(max(round(reading.test_fraction * len(y)), 1), max(len(y) - 1, 0))
        test, train = order[:cut], order[cut:]
        sides = (x[train], y[train]), (x[test], y[test])
    else:
        sides = (
            _checked(where, parts["x_train"], parts["y_train"]),
            _checked(where, parts["x_test"], parts["y_test"]),
        )
    xs = [_samples(x, reading.normalize) for x, _ in sides]
    if reading.numbers:
        ys = [torch.from_numpy(finite_numbers(y, _row_of(where)).astype(np.float32)) for _, y in sides]
        return OwnData(xs[0], ys[0], xs[1], ys[1], ())
    for _, y in sides:
        if y.ndim != 1:
            raise DataError(f"{where}: labels of shape {y.shape} should be one class per sample")
    codes, classes = code_labels(np.concatenate([y for _, y in sides]), _row_of(where))
    y_train, y_test = torch.from_numpy(codes).split([len(y) for _, y in sides])
    return OwnData(xs[0], y_train, xs[1], y_test, classes)


def _row_of(where: str) -> Callable[[int], str]:
    return lambda row: f"{where}: sample {row + 1}"


def in_order(names: set[str]) -> tuple[str, ...]:
    """Class names in the order of their numbers, if all are numbers, else of the alphabet."""
    numbers = all(name.lstrip("-").isdigit() for name in names)
    return tuple(sorted(names, key=lambda n: (int(n), n) if numbers else (0, n)))


def class_names(population: Population) -> tuple[str, ...]:
    """The classes of a population by name; none where targets are numbers."""
    return population.class_names or tuple(str(c) for c in range(population.classes))


def _checked(where: str, x: Any, y: Any) -> tuple[Any, Any]:
    x, y = np.asarray(x), np.asarray(y)
    if not y.ndim or len(x) != len(y):
        raise DataError(f"{where}: labels of shape {y.shape} should be one per sample, ({len(x)},)")
    if x.dtype.kind not in "buif" or (x.dtype.kind == "f" and not np.isfinite(x).all()):
        raise DataError(f"{where}: samples should be finite numbers")
    return x, y


def _samples(x: Any, normalize: str) -> torch.Tensor:
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] != 3)):
        x = channels_first(x)
    return to_float(x, normalize, 255.0 if x.dtype == np.uint8 else None)


def _npz(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"data={str(path)!r} should be a file on the node")
    names = ("x_train", "y_train", "x_test", "y_test") if "x_test" in npz_names(path) else ("x", "y")
    return dict(zip(names, read_npz(path, *names), strict=True))


def _table(
    path: Path, name: str, reading: Reading
) -> tuple[dict[str, Any], tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The node's own rows of a table, its columns of features, and the words of those that hold words."""
    if not path.is_file():
        raise DataError(f"data={str(path)!r} should be a file on the node")
    path, columns = _own_rows(path, name, reading.client)
    column = user_tables.wanted(path, columns, reading.label, "data.label_column")
    user_tables.complete(path, reading.label, column)
    y = column.to_numpy()
    if y.dtype.kind not in "biuf":
        y = user_tables.texts(path, reading.label, column)
    names = reading.features or user_tables.other_columns(path, columns, reading.client, reading.label)
    for given in reading.categorical:
        if given not in names:
            raise DataError(f"{path}: categorical={given!r} should be a feature column{suggestion(given, names)}")
    agreed = reading.words or [None] * len(reading.categorical)
    words = dict(zip(reading.categorical, agreed, strict=True))
    x, _, found = user_tables.coded_features(path, columns, names, words)
    about = names, tuple(found[given] for given in reading.categorical)
    if "split" not in columns or "split" in names:
        return {"x": x, "y": y}, *about
    test = user_tables.test_rows(path, columns, len(y))
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}, *about


def _own_rows(path: Path, name: str, client: str) -> tuple[Path, user_tables.Columns]:
    """A table's columns; where one says whose a row is, of the node's own rows alone. The path is for errors, which
    count rows."""
    columns = user_tables.read_columns(path, client)
    if client not in columns:
        return path, columns
    mine = user_tables.texts(path, client, columns[client]) == name
    if not mine.any():
        raise DataError(f"{path}: its column {client!r} should name {name!r} in some rows")
    return Path(f"{path}, rows of {name!r}"), {n: column.filter(mine) for n, column in columns.items()}


def public_samples(path: Path, like: Population, normalize: str) -> torch.Tensor:
    """The server's own samples: x of an .npz file, or a table with the columns that nodes have agreed on."""
    if not path.is_file():
        raise DataError(f"public={str(path)!r} should be a file on the server")
    x = _samples(read_samples(path, like.feature_names, like.categories), normalize)
    if tuple(x.shape[1:]) != like.input_shape:
        raise DataError(f"{path}: samples of shape {list(x.shape[1:])} should be like the nodes', {like.input_shape}")
    return x


def _called(spec: str, name: str) -> dict[str, Any]:
    """What the user's function returns: (x, y), or (x_train, y_train, x_test, y_test); of a dict of clients, which a
    simulation takes too, the node's own."""
    try:
        with only(None):  # the node's own operator named it
            function = load_function(spec, "that returns the node's data")
    except ConfigError as e:
        raise DataError(f"data={spec!r} should name a function that the node can import, but: {e}") from e
    try:
        found = function()
    except Exception as e:
        raise DataError(f"data={spec!r} should be callable without arguments, but {type(e).__name__}: {e}") from e
    if isinstance(found, Mapping):
        if name not in found:
            raise DataError(f"data={spec!r} should have {name!r} among its clients: {', '.join(map(str, found))}")
        found = found[name]
    found = tuple(found)
    if len(found) not in (2, 4):
        raise DataError(f"data={spec!r} should return (x, y) or (x_train, y_train, x_test, y_test)")
    names = ("x", "y") if len(found) == 2 else ("x_train", "y_train", "x_test", "y_test")
    return dict(zip(names, found, strict=True))


def _of_config(path: Path, index: int) -> OwnData:
    """Client ``index`` of a config's own population."""
    from clusterfl.config import Config

    population = Config.load(path).population()
    if not 0 <= index < len(population.train):
        raise DataError(f"index={index} should be below the config's {len(population.train)} clients")
    return OwnData(*population.train.of(index), *population.test.of(index), class_names(population))
