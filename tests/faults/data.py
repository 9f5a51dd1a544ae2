"""Samples and labels that cannot be learnt from, in every format that is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch
from torch.utils.data import TensorDataset

from clusterfl.config import Config
from clusterfl.data.population import Population

from .common import Tally
from .refusals import refuses

Array = npt.NDArray[Any]
N, WIDTH = 12, 3


def samples(bad: Any) -> tuple[Array, Array]:
    """Sound samples of a client, but for one number in row 7."""
    x, y = np.random.default_rng(0).normal(size=(N, WIDTH)), np.arange(N) % 2
    x = x.astype(np.result_type(x, np.asarray(bad))) if isinstance(bad, complex) else x
    x[7, 1] = bad
    return x, y


def read(source: str) -> Population:
    return Config.load(None, [f"data.source={source}"]).population()


def from_folder(place: Path, x: Array, y: Array, side: str) -> Population:
    good_x, good_y = samples(0.0)
    place.mkdir()
    sides = {"train": (good_x, good_y), "test": (good_x, good_y)}
    np.savez(place / "ann.npz", **{f"{a}_{s}": v for s, pair in sides.items() for a, v in zip("xy", pair, strict=True)})
    sides[side] = (x, y)
    np.savez(place / "bob.npz", **{f"{a}_{s}": v for s, pair in sides.items() for a, v in zip("xy", pair, strict=True)})
    return read(f"folder:{place}")


def _table(x: Array, y: Array, side: str) -> pa.Table:
    good_x, good_y = samples(0.0)
    other = "test" if side == "train" else "train"
    columns = np.concatenate([good_x, x])
    return pa.table(
        {
            "client": ["ann"] * N + ["bob"] * N,
            "label": np.concatenate([good_y, y]),
            "split": [side] * 6 + [other] * 6 + [other] * 6 + [side] * 6,
            **{f"f{j}": columns[:, j] for j in range(WIDTH)},
        }
    )


def from_csv(place: Path, x: Array, y: Array, side: str) -> Population:
    path = place.with_suffix(".csv")
    pa_csv.write_csv(_table(x, y, side), path)
    return read(f"table:{path}")


def from_parquet(place: Path, x: Array, y: Array, side: str) -> Population:
    path = place.with_suffix(".parquet")
    pq.write_table(_table(x, y, side), path)
    return read(f"table:{path}")


def from_arrays(place: Path, x: Array, y: Array, side: str) -> Population:
    good = [samples(0.0), samples(0.0)]
    sides = {"train": good, "test": good, side: [good[0], (x, y)]}
    return Population.from_arrays(sides["train"], sides["test"], names=["ann", "bob"])


def from_datasets(place: Path, x: Array, y: Array, side: str) -> Population:
    def of(pair: tuple[Array, Array]) -> TensorDataset:
        return TensorDataset(*(torch.as_tensor(a) for a in pair))

    good = [of(samples(0.0)), of(samples(0.0))]
    sides = {"train": good, "test": good, side: [good[0], of((x, y))]}
    return Population.from_datasets(sides["train"], sides["test"], names=["ann", "bob"])


FORMATS: dict[str, tuple[Callable[[Path, Array, Array, str], Population], str, str]] = {
    "folder": (from_folder, "bob.npz", "row 7"),
    "csv": (from_csv, ".csv", f"row {N + 8}"),
    "parquet": (from_parquet, ".parquet", f"row {N + 8}"),
    "arrays": (from_arrays, "bob", "row 7"),
    "datasets": (from_datasets, "bob", "row 7"),
}


def not_finite_data(tally: Tally, amount: int, folder: Path) -> None:
    """NaN, infinity and numbers beyond float32 in train and test samples of every format: refused by client and row."""
    values = {"nan": np.nan, "inf": np.inf, "1e300": 1e300}
    cases = [(f, s, v) for v in values for s in ("train", "test") for f in FORMATS]
    for form, side, value in cases[:: max(1, len(cases) // amount)]:
        with tally.case(f"{form}, {side}, {value}"):
            make, *words = FORMATS[form]
            x, y = samples(values[value])
            refuses(lambda: make(folder / f"{form}-{side}-{value}", x, y, side), *words)  # noqa: B023


def impossible_data(tally: Tally, amount: int, folder: Path) -> None:
    """Labels and features that are no classes and no numbers: one sentence each."""
    x, y = samples(0.0)
    huge, far = np.where(np.arange(N) == 7, 2**63 - 1, y), np.where(np.arange(N) == 7, 2.0**63, y)
    beyond = np.where(np.arange(N) == 7, np.uint64(2**64 - 1), y.astype(np.uint64))
    tries: dict[str, tuple[Array, Array]] = {
        "the label 2^63 - 1": (x, huge),
        "the label 2^63 as a float": (x, far),
        "the label 2^64 - 1": (x, beyond),
        "the label NaN": (x, np.where(np.arange(N) == 7, np.nan, y)),
        "the label -1": (x, np.where(np.arange(N) == 7, -1, y)),
        "complex features": (samples(1j)[0], y),
        "text for features": (x.astype(str), y),
        "objects": (np.where(np.arange(WIDTH) == 1, None, x.astype(object)), y),
        "dates": (np.full((N, WIDTH), "2020-01-01", dtype="datetime64[D]"), y),
    }
    for what, (features, labels) in list(tries.items())[:amount]:
        for form in ("folder", "arrays"):
            make = FORMATS[form][0]
            with tally.case(f"{what}, {form}"):
                refuses(lambda: make(folder / f"{what}-{form}", features, labels, "train"))  # noqa: B023
    texts = {
        "two columns of one name": "client,label,f,f\na,0,1,2\na,1,2,3\n",
        "no column of clients": "who,label,f\na,0,1\na,1,2\n",
        "a missing value": "client,label,f\na,0,1\na,1,\n",
        "a header alone": "client,label,f\n",
        "rows of unlike length": "client,label,f\na,0,1\na,1,2,3\n",
    }
    for what, text in list(texts.items())[:amount]:
        with tally.case(what):
            path = folder / f"{what}.csv"
            path.write_text(text)
            refuses(lambda: read(f"table:{path}"), path.name)  # noqa: B023
