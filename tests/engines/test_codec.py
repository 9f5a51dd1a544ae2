"""Messages: what goes in comes out, and what is broken is a ValueError and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_tensors

from clusterfl.engines import codec
from clusterfl.method import Clusters, Registered, State
from clusterfl.methods import IFCA
from clusterfl.parts.local import SGD
from clusterfl.testing.compare import assert_equal

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@dataclass(frozen=True)
class Nested(State):
    value: Any
    more: Any = None


def tensor(shape: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=g) * 50).abs().to(dtype)


tensors = st.builds(tensor, st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES), st.integers(0, 99))
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
values = st.recursive(
    tensors | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
        | st.builds(Nested, inner, inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Nested):
        return isinstance(b, Nested) and same(a.value, b.value) and same(a.more, b.more)
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(values)
@settings(max_examples=200, deadline=None)
def test_round_trip(value: Any) -> None:
    assert same(codec.unpack(codec.pack(value)), value)


def test_views_and_strides_are_sent_as_they_look() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    value = {"turned": base.permute(2, 0, 1), "part": base[:, 1:, ::2], "same": base, "wide": base[0, 0, :1].expand(5)}
    assert same(codec.unpack(codec.pack(value)), value)


def test_methods_and_states_come_back() -> None:
    method = IFCA(k=3, local=SGD(lr=0.2, steps=5))
    assert codec.unpack(codec.pack(method)) == method
    state = Clusters({"w": torch.randn(3, 2)}, torch.tensor([0, 2, 1]))
    back = codec.unpack(codec.pack(state))
    assert isinstance(back, Clusters)
    assert_equal(state, back, "state")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", torch.zeros(2, dtype=torch.complex64), lambda: 0])
def test_what_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="should"):
        codec.pack(value)


def test_a_class_of_no_one_is_refused() -> None:
    @dataclass
    class Stranger:
        x: int = 1

    with pytest.raises(TypeError, match="Stranger"):
        codec.pack(Stranger())


def message() -> bytes:
    state = Clusters({"w": torch.randn(3, 8), "b": torch.randn(3)}, torch.arange(3))
    return codec.pack({"state": state, "method": IFCA(), "n": torch.tensor(4.0), "list": [1, 2.5, None, "x"]})


def test_500_broken_messages_are_only_value_errors() -> None:
    whole, draw = message(), random.Random(0)
    for i in range(500):
        if i % 2:
            broken = whole[: draw.randrange(len(whole))]
        else:
            flipped = bytearray(whole)
            flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            broken = bytes(flipped)
        try:
            codec.unpack(broken)
        except ValueError as e:
            assert "cannot be read" in str(e)
        else:
            pytest.fail(f"broken message {i} was read")


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_a_value_error(noise: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        codec.unpack(noise)


def framed(head: bytes, tensors: bytes | None = None) -> bytes:
    """A message with a right checksum, whatever is in it."""
    body = struct.pack("<Q", len(head)) + head + (save_tensors({}) if tensors is None else tensors)
    return hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    "structure",
    [
        {"$c": "os:system", "f": {"command": "touch ran"}},
        {"$c": "subprocess:Popen", "f": {"args": ["touch", "ran"]}},
        {"$c": "clusterfl.parts.local:SGD", "f": {"lr": -1.0}},
        {"$c": "clusterfl.parts.local:SGD", "f": {"unknown": 1}},
        {"$c": ["x"], "f": {}},
        {"$t": "missing"},
        {"$d": 3},
        {"$d": [[{"$l": []}, 1]]},
        {"$f": "one"},
        {"$x": 1},
        {},
    ],
)
def test_hostile_structures_build_nothing(structure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        codec.unpack(framed(json.dumps(structure).encode()))
    assert not list(tmp_path.iterdir())


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    payload = pickle.dumps(Bomb())
    for broken in (payload, framed(payload), framed(b"null", payload), message() + payload):
        with pytest.raises(ValueError, match="cannot be read"):
            codec.unpack(broken)
    assert not (tmp_path / "ran").exists()


def test_deep_nesting_is_a_value_error() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(ValueError, match="cannot be read"):
        codec.unpack(framed(f'{{"$l":{deep}}}'.encode()))


def test_broken_parts_under_a_right_checksum_are_value_errors() -> None:
    """What a hostile sender, who can compute a checksum, could send."""
    whole, draw = message()[32:], random.Random(1)
    for i in range(300):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        body = bytes(flipped) if i % 2 else whole[: draw.randrange(len(whole))]
        with contextlib.suppress(ValueError):
            codec.unpack(hashlib.sha256(body).digest() + body)


def test_tags_name_registered_classes_only() -> None:
    assert Registered.find(IFCA.tag()) is IFCA
    with pytest.raises(ValueError, match="imported"):
        Registered.find("builtins:eval")
