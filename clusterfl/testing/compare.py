"""States compared tensor by tensor, and models served to every client."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from clusterfl.method import Method, Served


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state, with the path to it."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, v in value.items():
            yield from tensors(v, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for j, v in enumerate(value):
            yield from tensors(v, f"{path}[{j}]")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from tensors(getattr(value, f.name), f"{path}.{f.name}")


def assert_equal(a: Any, b: Any, what: str) -> None:
    """The same tensors bit for bit."""
    left, right = dict(tensors(a)), dict(tensors(b))
    assert left.keys() == right.keys(), f"{what}: different fields {left.keys() ^ right.keys()}"
    for path, t in left.items():
        assert t.dtype == right[path].dtype, f"{what}: {path} changed its dtype"
        assert torch.equal(t, right[path]) or (
            t.is_floating_point() and torch.equal(t.nan_to_num(), right[path].nan_to_num())
        ), f"{what}: {path} differs by up to {(t.double() - right[path].double()).abs().max():g}"


def assert_close(a: Any, b: Any, what: str, tolerance: float = 1e-5) -> None:
    """Integers equal, floats within the tolerance (relative to the largest entry, if that is above 1)."""
    left, right = dict(tensors(a)), dict(tensors(b))
    assert left.keys() == right.keys(), f"{what}: different fields {left.keys() ^ right.keys()}"
    for path, t in left.items():
        other = right[path]
        if t.is_floating_point():
            scale = max(1.0, float(t.abs().max())) if t.numel() else 1.0
            gap = float((t - other).abs().max()) if t.numel() else 0.0
            assert gap <= tolerance * scale, f"{what}: {path} differs by {gap:g}"
        else:
            assert torch.equal(t, other), f"{what}: {path} differs"


def assert_served(method: Method[Any], served: Served, ids: Tensor) -> None:
    assert served.index.shape == ids.shape, f"{method.name}: serve should give one model per client"
    assert served.index.dtype == torch.int64, f"{method.name}: serve's index should be int64"
    assert int(served.index.min()) >= 0 and int(served.index.max()) < served.k, f"{method.name}: index range"
