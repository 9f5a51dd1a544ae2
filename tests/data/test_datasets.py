"""Every file layout that a source may come in, on small made files."""

from __future__ import annotations

import bz2
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.io
import torch

from clusterfl import keys
from clusterfl.data.download import verify
from clusterfl.data.registry import SOURCES, data_root, load_source, to_grey
from clusterfl.data.scenario import DataConfig, build
from clusterfl.data.source import ImageFiles
from clusterfl.errors import ConfigError, DataError

from .made import RNG, leaf_json


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes byte strings as Python 2 did, which is how CIFAR's files are written."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, data: bytes) -> None:
        self.write(b"T" + len(data).to_bytes(4, "little") + data)
        self.memoize(data)

    dispatch[bytes] = save_bytes


def cifar_batch(path: Path, labels: bytes, n: int, classes: int) -> tuple[np.ndarray, list[int]]:
    data = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
    y = [int(i) for i in RNG.integers(0, classes, n)]
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, 2).dump({b"data": data, labels: y, b"filenames": [b"a.png"] * n})
    path.write_bytes(path.read_bytes().replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"))
    return data, y


def test_cifar_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    batches = [cifar_batch(folder / f"data_batch_{i}", b"labels", 4, 10) for i in range(1, 6)]
    data, y = cifar_batch(folder / "test_batch", b"labels", 4, 10)
    source = load_source("cifar10", tmp_path)
    expected = np.concatenate([b[0] for b in batches]).reshape(-1, 3, 32, 32)
    assert np.array_equal(source.x_train, expected) and source.y_train.tolist() == [y for b in batches for y in b[1]]
    assert np.array_equal(source.x_test, data.reshape(-1, 3, 32, 32)) and source.y_test.tolist() == y
    (folder / "data_batch_3").unlink()
    with pytest.raises(DataError, match="should also hold cifar-10-batches-py/data_batch_3"):
        SOURCES["cifar10"].load("cifar10", tmp_path)


def test_cifar100_uses_fine_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        cifar_batch(tmp_path / "cifar-100-python" / part, b"fine_labels", 5, 100)
    assert load_source("cifar100", tmp_path).classes == 100


def test_svhn_mat_files(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (32, 32, 3, 6), dtype=np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": np.array([[1, 9, 10, 3, 10, 2]]).T})
    source = load_source("svhn", tmp_path)
    assert source.y_train.tolist() == [1, 9, 0, 3, 0, 2]
    assert np.array_equal(source.x_test, x.transpose(3, 2, 0, 1))
    (tmp_path / "train_32x32.mat").write_bytes((tmp_path / "train_32x32.mat").read_bytes()[:2000])
    with pytest.raises(DataError, match=r"train_32x32\.mat should be a whole"):
        SOURCES["svhn"].load("svhn", tmp_path)


def test_usps_libsvm_files(tmp_path: Path) -> None:
    x = RNG.uniform(-1, 1, (5, 256)).round(4)
    lines = [f"{label} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for label, row in enumerate(x, 1)]
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    source = load_source("usps", tmp_path)
    assert source.shape == (1, 16, 16) and source.y_train.tolist() == [0, 1, 2, 3, 4]
    assert np.abs(source.x_train.reshape(5, 256) / 255 - (x + 1) / 2).max() <= 0.5 / 255 + 1e-6


def test_sign_is_split_by_class(tmp_path: Path) -> None:
    y = np.repeat(np.arange(10), 20).astype(np.uint8)
    np.savez(tmp_path / "sign_language_digits.npz", x=np.zeros((200, 64, 64), np.uint8), y=y)
    source = load_source("sign", tmp_path)
    assert np.bincount(source.y_test).tolist() == [4] * 10 and source.shape == (1, 64, 64)


def femnist_user(n: int, value: int) -> tuple[list[Any], list[float]]:
    return [[value / 255] * 784] * n, [i % 62 for i in range(n)]


@pytest.mark.parametrize("base", ["femnist", "femnist/data"])
def test_femnist_leaf_train_and_test(tmp_path: Path, base: str) -> None:
    leaf_json(tmp_path / base / "train/a_train.json", {"f1": femnist_user(3, 7), "f2": femnist_user(4, 8)})
    leaf_json(tmp_path / base / "train/b_train.json", {"f3": femnist_user(5, 9)})
    leaf_json(tmp_path / base / "test/a_test.json", {u: femnist_user(2, 5) for u in ("f1", "f2", "f3")})
    population = build(DataConfig(source="femnist", root=str(tmp_path), clients=0, normalize="unit"), keys.key(0))
    assert population.clients == 3 and population.truth is None and population.classes == 62
    sizes = {}
    for i in range(3):
        x, _ = population.train.of(i)
        sizes[round(float(x.mean()) * 255)] = len(x)
        assert round(float(population.test.of(i)[0].mean()) * 255) == 5 and len(population.test.of(i)[0]) == 2
    assert sizes == {7: 3, 8: 4, 9: 5}


def test_femnist_all_data_is_held_out_by_client(tmp_path: Path) -> None:
    leaf_json(tmp_path / "femnist/all_data_0.json", {f"f{i}": femnist_user(10, i) for i in range(4)})
    leaf_json(tmp_path / "femnist/all_data_1.json", {"g": femnist_user(20, 40), "alone": femnist_user(1, 50)})
    config = DataConfig(source="femnist", root=str(tmp_path), clients=4, unseen=1, normalize="unit")
    population = build(config, keys.key(0))
    assert population.clients == 4 and population.unseen == 1  # the writer with one sample is left out
    for i in range(5):
        train, test = population.train.of(i)[0], population.test.of(i)[0]
        assert len(test) * 4 == len(train) and train.unique().numel() == test.unique().numel() == 1
        assert torch.equal(train[0], test[0])
    with pytest.raises(DataError, match=r"should together be at most 5.*clients=0 takes all"):
        build(DataConfig(source="femnist", root=str(tmp_path), clients=9), keys.key(0))
    shifted = build(
        DataConfig(source="femnist", root=str(tmp_path), clients=4, clusters=2, shift="rotate"), keys.key(0)
    )
    assert shifted.truth is not None and np.bincount(shifted.truth).tolist() == [2, 2]
    capped = build(DataConfig(source="femnist", root=str(tmp_path), clients=0, samples=4), keys.key(0))
    assert capped.train.sizes.tolist() == [4] * 5 and capped.test.sizes.tolist() == [1] * 5


def celeba(root: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = root / "celeba/data/raw/img_align_celeba"
    folder.mkdir(parents=True)
    users = {}
    for person in range(3):
        names = [f"{person}{i}.jpg" for i in range(5)]
        for name in names:
            image.new("RGB", (178, 218), (person * 100, 0, 0)).save(folder / name)
        users[str(person)] = names, [float(i % 2) for i in range(5)]
    leaf_json(root / "celeba/data/all_data/all_data.json", users)


def test_celeba_by_person_opens_images_only_when_held(tmp_path: Path) -> None:
    celeba(tmp_path)
    source = load_source("celeba", tmp_path)
    assert isinstance(source.x_train, ImageFiles) and source.shape == (3, 84, 84) and source.classes == 2
    config = DataConfig(source="celeba", root=str(tmp_path), clients=2, unseen=1, normalize="unit")
    population = build(config, keys.key(0))
    for i in range(3):
        x = torch.cat([population.train.of(i)[0], population.test.of(i)[0]])
        assert x.shape == (5, 3, 84, 84) and float(x[:, 0].std()) < 0.01  # one person's images, one colour
    (tmp_path / "celeba/data/raw/img_align_celeba/10.jpg").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"10\.jpg should be a readable image"):
        build(config, keys.key(0))


def test_celeba_without_images_says_where(tmp_path: Path) -> None:
    leaf_json(tmp_path / "celeba/data/all_data/all_data.json", {"1": (["a.jpg", "b.jpg"], [0.0, 1.0])})
    with pytest.raises(DataError, match=r"should have its images in .*img_align_celeba"):
        load_source("celeba", tmp_path)


def test_to_grey_brings_every_image_to_one_shape() -> None:
    flat = np.full((2, 3, 32, 32), 200, dtype=np.uint8)
    assert (to_grey(flat, 255.0) == 200).all()
    red = np.zeros((1, 3, 32, 32), dtype=np.uint8)
    red[:, 0] = 255
    assert (to_grey(red, 255.0) == round(0.299 * 255)).all()
    same = RNG.integers(0, 256, (2, 1, 28, 28), dtype=np.uint8)
    assert to_grey(same, 255.0) is same
    assert to_grey(np.full((1, 1, 8, 8), 16, dtype=np.uint8), 16.0).tolist() == [[[[255] * 28] * 28]]


def digit_files(root: Path) -> None:
    """MNIST dark, USPS mid grey, SVHN light, SIGN white: the source is seen in the pixels."""
    y = np.repeat(np.arange(10), 20).astype(np.uint8)
    for name, grey, shape in (("mnist", 10, (28, 28)), ("usps", 90, (16, 16)), ("svhn", 170, (32, 32, 3))):
        x = np.full((200, *shape), grey, dtype=np.uint8)
        np.savez(root / f"{name}.npz", x_train=x, y_train=y, x_test=x[::2], y_test=y[::2])
    np.savez(root / "sign_language_digits.npz", x=np.full((200, 64, 64), 250, np.uint8), y=y)


def test_multi_source_clusters_are_the_sources(tmp_path: Path) -> None:
    digit_files(tmp_path)
    config = DataConfig(source="multi_source", root=str(tmp_path), clients=8, samples=30, normalize="unit")
    population = build(config, keys.key(0))
    assert population.input_shape == (1, 28, 28) and population.truth is not None
    assert config.resolved().shift == "none" and population.true_clusters == 4
    greys = [10, 90, 170, 250]
    for i, k in enumerate(population.truth.tolist()):
        for shards in (population.train, population.test):
            x, y = shards.of(i)
            assert (x * 255 - greys[k]).abs().max() < 1
        assert np.bincount(y).min() == np.bincount(y).max()
    own = build(DataConfig(source="mnist+usps", root=str(tmp_path), clients=4, test="own", alpha=1.0), keys.key(0))
    assert own.true_clusters == 2 and own.test.sizes.tolist() == [25] * 4
    both = DataConfig(source="mnist+usps", root=str(tmp_path), clients=4, shift="rotate", clusters=4)
    assert build(both, keys.key(0)).true_clusters == 4
    with pytest.raises(ConfigError, match="clusters=3 should be a multiple of the 2 joined sources"):
        DataConfig(source="mnist+usps", shift="rotate", clusters=3)
    with pytest.raises(ConfigError, match="should be 'clusters' with joined sources"):
        DataConfig(source="mnist+usps", split="dirichlet", alpha=1.0)
    with pytest.raises(ConfigError, match="did you mean 'usps'"):
        load_source("mnist+upsp", tmp_path)


REAL = {
    "svhn": ("svhn_12k4k.npz", (12000, 3, 32, 32), 4000, 10),
    "sign": ("sign_language_digits.npz", (1651, 1, 64, 64), 411, 10),
    "cifar10": ("cifar10_10k2k.npz", (10000, 3, 32, 32), 2500, 10),
    "femnist": ("femnist_105writers.npz", (14708, 1, 28, 28), 1685, 62),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    file, shape, tests, classes = REAL[name]
    if not (data_root() / file).is_file():
        pytest.skip(f"{file} is not in the data root (CLUSTERFL_DATA)")
    source = SOURCES[name].load(name, data_root())
    assert source is not None and source.classes == classes
    assert source.x_train.shape == shape and len(source.y_test) == tests
    assert verify(name, data_root() / file) is True


def test_real_writers_are_clients() -> None:
    if not (data_root() / "femnist_105writers.npz").is_file():
        pytest.skip("femnist_105writers.npz is not in the data root (CLUSTERFL_DATA)")
    source = load_source("femnist")
    assert source.groups_train is not None
    population = build(DataConfig(source="femnist", clients=0), keys.key(0))
    assert population.clients == 105
    assert sorted(population.train.sizes.tolist()) == sorted(np.bincount(source.groups_train).tolist())
