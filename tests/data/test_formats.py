"""File formats: what is in them is read, what is damaged is named, and no code in them is run."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterfl.data.formats import read_cifar, read_idx, read_npz
from clusterfl.data.registry import load_source
from clusterfl.errors import DataError

from .made import idx_bytes, leaf_json, made_images


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for payload in (Evil(), {b"data": Evil()}, np.array([1]).view(np.matrix), Path("x")):
        (tmp_path / "b").write_bytes(pickle.dumps({b"data": payload, b"labels": [1]}))
        with pytest.raises(DataError, match=r"b should be a whole.*it asks for"):
            read_cifar(tmp_path / "b", b"labels")
    assert not (tmp_path / "owned").exists()
    (tmp_path / "b").write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)})[:50])
    with pytest.raises(DataError, match="b should be a whole"):
        read_cifar(tmp_path / "b", b"labels")


def test_damaged_leaf_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "femnist/all_data/all_data_0.json"
    leaf_json(path, {"f1": ([[0.0] * 784], [1, 2])})
    with pytest.raises(DataError, match=r"all_data_0\.json should be .* user 'f1' has 1 samples"):
        load_source("femnist", tmp_path)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataError, match=r"all_data_0\.json should be a whole"):
        load_source("femnist", tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('pathlib').Path('owned').write_text('x')",)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte"
    whole = idx_bytes(made_images(3)[0])
    for broken in (whole[:-1], whole + b"x", whole[:6], b"", b"GIF89a" + whole):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="images-idx3-ubyte should be a whole, readable file"):
            read_idx(path)
    zipped = tmp_path / "images.gz"
    for broken in (gzip.compress(whole)[:-20], b"not gzip at all"):
        zipped.write_bytes(broken)
        with pytest.raises(DataError, match=r"images\.gz should be a whole"):
            read_idx(zipped)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=made_images(50)[0])
    data = bytearray(buffer.getvalue())
    archive = tmp_path / "a.npz"
    for broken in (bytes(data[: len(data) // 2]), b"", bytes(data[:300]) + b"\0" * 2000 + bytes(data[2300:])):
        archive.write_bytes(broken)
        with pytest.raises(DataError, match=r"a\.npz should be a whole"):
            read_npz(archive, "x")
    archive.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"it holds \['x'\] and not \['y'\]"):
        read_npz(archive, "y")


def test_pickles_inside_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"p\.npz"):
        read_npz(tmp_path / "p.npz", "x")
