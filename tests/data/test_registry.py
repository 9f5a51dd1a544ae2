"""Sources on small made files, and on real ones where the data root has them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from clusterfl.data.registry import SOURCES, data_root, load_source, to_float
from clusterfl.errors import ConfigError, DataError

from .made import idx_bytes, made_images


def write_idx(folder: Path, prefix: str, test: str, gz: bool, first: int = 0) -> tuple[np.ndarray, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (*made_images(20), *made_images(10))
    names = ("train-images-idx3", "train-labels-idx1", f"{test}-images-idx3", f"{test}-labels-idx1")
    for name, array in zip(names, arrays, strict=True):
        data = idx_bytes(array + first if "labels" in name else array)
        path = folder / f"{prefix}{name}-ubyte{'.gz' if gz else ''}"
        path.write_bytes(gzip.compress(data) if gz else data)
    return arrays


def test_digits_are_always_there_and_split_by_class() -> None:
    source = load_source("digits")
    assert source.shape == (1, 8, 8) and source.classes == 10 and source.levels == 16
    from sklearn.datasets import load_digits

    whole = np.bincount(load_digits().target)
    test = np.bincount(source.y_test)
    assert (np.abs(test - whole * 0.2) <= 0.5).all()
    assert (np.bincount(source.y_train) + test == whole).all()
    x = to_float(source.x_train, "unit", source.levels)
    assert x.dtype == torch.float32 and x.min() == 0 and x.max() == 1
    assert load_source("digits") is source  # cached


def test_to_float() -> None:
    x = np.array([[0, 51, 255]], dtype=np.uint8)
    np.testing.assert_allclose(to_float(x, "unit"), [[0, 0.2, 1]], atol=1e-7)
    np.testing.assert_allclose(to_float(x), [[-1, -0.6, 1]], atol=1e-6)
    np.testing.assert_allclose(to_float(np.array([3.5]), levels=None), [3.5])
    with pytest.raises(ConfigError, match="did you mean 'unit'"):
        to_float(x, "unti")


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
def test_mnist_from_idx_files(tmp_path: Path, folder: str, gz: bool) -> None:
    arrays = write_idx(tmp_path / folder, "", "t10k", gz)
    source = load_source("mnist", tmp_path)
    assert np.array_equal(source.x_train[:, 0], arrays[0]) and np.array_equal(source.y_train, arrays[1])
    assert np.array_equal(source.x_test[:, 0], arrays[2]) and np.array_equal(source.y_test, arrays[3])


def test_emnist_idx_is_transposed_and_counts_from_one(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path / "EMNIST/raw", "emnist-letters-", "test", True, first=1)
    source = load_source("emnist_letters", tmp_path)
    assert np.array_equal(source.x_train[:, 0], arrays[0].transpose(0, 2, 1))
    assert np.array_equal(source.y_test, arrays[3])


def test_npz(tmp_path: Path) -> None:
    x, y = made_images(30)
    np.savez(tmp_path / "mnist.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    source = load_source("mnist", tmp_path)
    assert source.x_train.shape == (20, 1, 28, 28) and source.y_test.dtype == np.int64


def test_root_comes_from_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERFL_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path and data_root() == tmp_path / "env"
    monkeypatch.delenv("CLUSTERFL_DATA")
    assert data_root().name == "clusterfl"


def test_missing_and_unknown_sources_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"source='mnist' should have one of mnist\.npz.*CLUSTERFL_DATA") as error:
        load_source("mnist", tmp_path)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        load_source("minst", tmp_path)
    write_idx(tmp_path, "", "t10k", False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="should also hold t10k-labels-idx1-ubyte"):
        load_source("mnist", tmp_path)


def test_labels_out_of_range_are_an_error(tmp_path: Path) -> None:
    x, y = made_images(10)
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y + 1, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"train labels should be within 0\.\.9, not 1\.\.10"):
        load_source("mnist", tmp_path)


REAL = {
    "mnist": ("mnist.npz", (60000, 1, 28, 28), 10000, 10),
    "fashion_mnist": ("fashion_mnist.npz", (60000, 1, 28, 28), 10000, 10),
    "usps": ("usps.npz", (7291, 1, 16, 16), 2007, 10),
    "emnist_letters": ("emnist_letters_31k5k.npz", (31200, 1, 28, 28), 5200, 26),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    file, shape, tests, classes = REAL[name]
    if not (data_root() / file).is_file():
        pytest.skip(f"{file} is not in the data root (CLUSTERFL_DATA)")
    source = SOURCES[name].load(name, data_root())
    assert source is not None
    assert source.x_train.shape == shape and len(source.y_test) == tests
    assert np.array_equal(np.unique(source.y_train), np.arange(classes))
