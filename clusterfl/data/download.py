"""Fetching the originals where there is a network, and telling whether a file is the known one."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from clusterfl.data.registry import SOURCES, data_root, names_in
from clusterfl.errors import ConfigError, DataError, suggestion

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remote:
    url: str
    md5: str
    folder: str = "."  # below the data root, where the source's loader looks
    unpack: str = ""  # "zip" or "tar"


def _four(base: str, folder: str, *md5: str) -> tuple[Remote, ...]:
    files = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Remote(f"{base}{f}-ubyte.gz", h, folder) for f, h in zip(files, md5, strict=True))


_EMNIST = (
    Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "58c8d27c78d21e728a6bc7b3cc06412e",
        "EMNIST/raw",
        "zip",
    ),
)
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"

REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": _four(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "MNIST/raw",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _four(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "FashionMNIST/raw",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "emnist_letters": _EMNIST,
    "emnist_balanced": _EMNIST,
    "emnist_byclass": _EMNIST,
    "usps": (
        Remote(f"{_LIBSVM}usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        Remote(f"{_LIBSVM}usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    "svhn": (
        Remote(f"{_SVHN}train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote(f"{_SVHN}test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "cifar10": (Remote(f"{_CIFAR}cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", unpack="tar"),),
    "cifar100": (Remote(f"{_CIFAR}cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", unpack="tar"),),
}

BY_HAND = {
    "sign": "github.com/ardamavi/Sign-Language-Digits-Dataset, as arrays x and y in sign_language_digits.npz",
    "femnist": "LEAF's scripts (github.com/TalwalkarLab/leaf, data/femnist)",
    "celeba": "LEAF's scripts (github.com/TalwalkarLab/leaf, data/celeba)",
}

# of the compact files that this project's tests use, and of the unpacked originals
CHECKSUMS = {
    ("mnist", "mnist.npz"): "063831184c3b44c270bd79fb1557ba356a0ce0e002b5e3dbed5d6ee4c0e7f33b",
    ("mnist", "train-images-idx3-ubyte"): "6bbc9ace898e44ae57da46a324031adb",
    ("mnist", "train-labels-idx1-ubyte"): "a25bea736e30d166cdddb491f175f624",
    ("mnist", "t10k-images-idx3-ubyte"): "2646ac647ad5339dbf082846283269ea",
    ("mnist", "t10k-labels-idx1-ubyte"): "27ae3e4e09519cfbb04c329615203637",
    ("fashion_mnist", "fashion_mnist.npz"): "f9f3d44056bfa4f92733480323b8b3fe32e50ac6edb9a1a88383c649370f6575",
    ("usps", "usps.npz"): "ff1e144b09abdd42b3877b83440fe2c032f76dd3d7d247010b756c454c067fd9",
    ("svhn", "svhn_12k4k.npz"): "ce51f85f7b7d5616d75e9e30184924c7fc10f66a70431c38af83cf427aeb5711",
    ("sign", "sign_language_digits.npz"): "cc643aab655b46c8a2bc3d547b2fcb084494512f592004450b990dd4377c4d93",
    ("cifar10", "cifar10_10k2k.npz"): "2922e1b8e963e6b58e6b86bae3089b783c9ff235104583695d12037ccdb6e8fe",
    ("emnist_letters", "emnist_letters_31k5k.npz"): (
        "718aa22b66603e23e1494df8827c7cea468128bfe3156687163d1428332c5619"
    ),
    ("femnist", "femnist_105writers.npz"): "46865cd59bb4bbff8490c3cd37960a1bb331d04138b9d5677c64530264aa5b21",
}


def verify(name: str, path: Path) -> bool | None:
    """Whether the file is bit for bit the known one of that source; None where no checksum is known."""
    known = {r.url.rpartition("/")[2]: r.md5 for r in REMOTES.get(name, ())}
    expected = CHECKSUMS.get((name, path.name)) or known.get(path.name)
    if expected is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5" if len(expected) == 32 else "sha256").hexdigest() == expected


def download(name: str, root: str | Path | None = None) -> Path:
    """The originals of a source (or of all that are joined), checked and put where ``load_source`` looks."""
    import pooch

    base = data_root(root)
    for part in names_in(name):
        if part not in SOURCES:
            raise ConfigError(f"source={part!r} should be one of the known sources{suggestion(part, SOURCES)}")
        if part in BY_HAND:
            raise DataError(f"source={part!r} should be put in {base} by hand; it comes from {BY_HAND[part]}")
        for remote in REMOTES.get(part, ()):
            folder = base / remote.folder
            unpack = {"zip": pooch.Unzip, "tar": pooch.Untar}.get(remote.unpack)
            log.info("downloading %s to %s", remote.url, folder)
            try:
                pooch.retrieve(
                    remote.url,
                    f"md5:{remote.md5}",
                    fname=remote.url.rpartition("/")[2],
                    path=folder,
                    processor=unpack(extract_dir=".") if unpack else None,
                )
            except (OSError, ValueError) as error:
                raise DataError(
                    f"source={part!r} could not be downloaded: {error}; {remote.url} should be put in {folder} by hand"
                ) from error
    return base
