"""Downloads: files land where the loader looks, whole or not at all."""

from __future__ import annotations

import bz2
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clusterfl.data.download import BY_HAND, REMOTES, Remote, download, verify
from clusterfl.data.registry import SOURCES, load_source
from clusterfl.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "www"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/", folder
        httpd.shutdown()


def test_download_puts_files_where_the_loader_looks(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, www = server
    x = RNG.uniform(-1, 1, (2, 256)).round(3)
    lines = [f"{i + 1} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for i, row in enumerate(x)]
    remotes = []
    for name in ("usps.bz2", "usps.t.bz2"):
        data = bz2.compress("\n".join(lines).encode())
        (www / name).write_bytes(data)
        remotes.append(Remote(url + name, hashlib.md5(data).hexdigest()))
    monkeypatch.setitem(REMOTES, "usps", tuple(remotes))
    root = download("usps", tmp_path / "data")
    assert load_source("usps", root).y_train.tolist() == [0, 1]
    assert verify("usps", root / "usps.bz2") is True
    (root / "usps.bz2").write_bytes(b"damaged")
    assert verify("usps", root / "usps.bz2") is False
    monkeypatch.setitem(REMOTES, "usps", (Remote(url + "usps.bz2", "0" * 32),))
    with pytest.raises(DataError, match=r"'usps' could not be downloaded.*by hand"):
        download("usps", tmp_path / "other")
    with pytest.raises(DataError, match=r"'femnist' should be put in .* LEAF"):
        download("femnist", tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'usps'"):
        download("usp", tmp_path)


def test_every_source_can_be_had_somehow() -> None:
    assert set(SOURCES) == {"digits", *REMOTES, *BY_HAND}
