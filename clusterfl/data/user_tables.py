"""Columns of a user's .csv or .parquet file: used as they are, or refused by column and row.

Row 1 is the first below the header.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clusterfl.data.formats import names_the_file
from clusterfl.data.labels import code_labels, finite_numbers, unbounded
from clusterfl.errors import DataError, suggestion

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Column = Any  # pyarrow.ChunkedArray
Whose = Callable[[int], str] | None  # the client of a row
Columns = Mapping[str, Column]
Categories = dict[str, tuple[str, ...]]  # the words that a column of words may hold, in order
ROW_NUMBERS = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # what to_csv and to_parquet call a table's index
MOST_CATEGORIES = 1000  # of a column: each is a feature


@names_the_file
def _read_table(path: Path, text: str) -> Any:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    if path.suffix == ".csv":
        from pyarrow import csv

        return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types={text: "string"}))
    raise ValueError("its name ends neither in .csv nor in .parquet")


def read_columns(path: Path, text: str = "client") -> dict[str, Column]:
    """All columns; ``text`` is one that is text even where it looks like numbers (007)."""
    table = _read_table(path, text)
    if not table.num_rows:
        raise DataError(f"{path} should have rows, but has only a header")
    twice = [name for name in table.column_names if table.column_names.count(name) > 1]
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} should be there once, but two have that name")
    return {name: table[name] for name in table.column_names}


def wanted(path: Path, columns: Columns, name: str, key: str) -> Column:
    if name not in columns:
        raise DataError(f"{path}: a column {name!r} should be there{suggestion(name, columns)}; {key} names another")
    return columns[name]


def cell(path: Path, name: str, row: int, whose: Whose = None) -> str:
    """A place in a table in words, with its client where that is known."""
    return f"{path}: column {name!r}, row {row + 1}{f', client {whose(row)!r}' if whose else ''}"


def complete(path: Path, name: str, column: Column, whose: Whose = None) -> None:
    """Refuses missing values."""
    if column.null_count:
        place = cell(path, name, int(np.flatnonzero(column.is_null().to_numpy())[0]), whose)
        more = f" ({column.null_count} rows have none)" if column.null_count > 1 else ""
        raise DataError(f"{place} should have a value{more}; fill or remove missing values")


def texts(path: Path, name: str, column: Column, whose: Whose = None) -> Array:
    complete(path, name, column, whose)
    words = np.array([str(v) for v in column.to_pylist()])
    empty = np.flatnonzero(words == "")
    if len(empty):
        raise DataError(f"{cell(path, name, int(empty[0]), whose)} should have a value; fill or remove it")
    return words


def labels(
    path: Path, name: str, column: Column, known: tuple[str, ...] | None, *, numbers: bool = False, whose: Whose = None
) -> tuple[Array, tuple[str, ...] | None]:
    """Classes and their names, or numbers as they are."""
    complete(path, name, column, whose)
    values = column.to_numpy()
    if numbers:
        return finite_numbers(values, lambda row: cell(path, name, row, whose)), None
    if values.dtype.kind not in "biuf":  # text, dates, decimals: their words
        values = texts(path, name, column, whose)
    return code_labels(values, lambda row: cell(path, name, row, whose), known)


def other_columns(path: Path, columns: Columns, *taken: str) -> tuple[str, ...]:
    """The feature columns where nobody named them: all others, but for the row numbers that pandas writes."""
    rest = tuple(name for name in columns if name not in (*taken, "split"))
    rows = [name for name in rest if ROW_NUMBERS.fullmatch(name)]
    if rows:
        log.warning(
            "%s: column %r is taken for pandas' row numbers, no feature; data.feature_columns can name it",
            path,
            rows[0],
        )
    return tuple(name for name in rest if name not in rows)


def features(path: Path, columns: Columns, names: tuple[str, ...]) -> Array:
    """``[n, len(names)]`` float32, in this order."""
    return coded_features(path, columns, names, {})[0]


def coded_features(
    path: Path,
    columns: Columns,
    names: tuple[str, ...],
    words: Mapping[str, tuple[str, ...] | None],
    whose: Whose = None,
) -> tuple[Array, tuple[str, ...], Categories]:
    """``[n, d]`` float32, the names of these d features, and the categories of each column of ``words``.

    A column of words becomes one feature per category, 1 where the row has it: of those categories that are given,
    else of all that occur, by the alphabet.
    """
    if not names:
        raise DataError(f"{path}: there should be feature columns beside client, label and split")
    parts: list[Array] = []
    categories: Categories = {}
    for name in names:
        column = wanted(path, columns, name, "data.feature_columns")
        if name not in words:
            parts.append(_numbers(path, name, column, whose)[:, None])
            continue
        hot, categories[name] = _one_hot(path, name, column, words[name])
        parts.append(hot)
    made = feature_names(names, categories)
    twice = next((name for name in made if made.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: the feature {twice!r} should be there once: rename the column of that name")
    return np.concatenate(parts, axis=1), made, categories


def feature_names(columns: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The features that columns become: one each, and of a column of words one for each word."""
    parts = [[f"{name}={word}" for word in categories[name]] if name in categories else [name] for name in columns]
    return tuple(feature for part in parts for feature in part)


def columns_behind(features: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The columns of a table that features were made of, in order."""
    home = {f"{name}={word}": name for name, words in categories.items() for word in words}
    return tuple(dict.fromkeys(home.get(feature, feature) for feature in features))


def _one_hot(path: Path, name: str, column: Column, known: tuple[str, ...] | None) -> tuple[Array, tuple[str, ...]]:
    values = texts(path, name, column)
    found = tuple(np.unique(values).tolist())
    if known is None and len(found) > MOST_CATEGORIES:
        raise DataError(
            f"{path}: column {name!r} has {len(found):,} different values and should have at most {MOST_CATEGORIES:,} "
            "as categories; leave it out with data.feature_columns"
        )
    known = known or found
    for word in found:
        if word not in known:
            row = int(np.flatnonzero(values == word)[0]) + 1
            raise DataError(
                f"{path}: column {name!r}, row {row}: the category {word!r} should be a known one"
                f"{suggestion(word, known)}"
            )
    return (values[:, None] == np.array(known)).astype(np.float32), known


def _numbers(path: Path, name: str, column: Column, whose: Whose = None) -> Array:
    """Numbers, and booleans as 0 and 1."""
    complete(path, name, column, whose)
    values = column.to_numpy()
    if values.dtype.kind not in "buif":
        row = next((j for j, v in enumerate(column.to_pylist()) if not _is_number(v)), 0)
        raise DataError(
            f"{cell(path, name, row, whose)} should be a number, not {str(column[row])!r}; write text and "
            "dates as numbers, name a column of categories in data.categorical, or leave it out with "
            "data.feature_columns"
        )
    bad = unbounded(values)
    if len(bad):
        raise DataError(f"{cell(path, name, int(bad[0]), whose)} should be a finite number, not {values[bad[0]]}")
    found: Array = values.astype(np.float32)
    return found


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def test_rows(path: Path, columns: Columns, n: int) -> npt.NDArray[np.bool_]:
    """Which rows are test samples, by the column ``split`` where there is one."""
    if "split" not in columns:
        return np.zeros(n, dtype=bool)
    words = texts(path, "split", columns["split"])
    other = np.flatnonzero(~np.isin(words, ["train", "test"]))
    if len(other):
        row, word = other[0] + 1, str(words[other[0]])
        raise DataError(f"{path}: column 'split', row {row} should hold only 'train' and 'test', not {word!r}")
    found: npt.NDArray[np.bool_] = words == "test"
    return found
