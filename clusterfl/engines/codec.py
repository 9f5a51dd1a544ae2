"""Values to bytes and back without running code: tensors as safetensors, the rest as JSON.

A message is ``[SHA-256 of the rest][8 bytes: JSON length][JSON][safetensors]``. JSON holds the structure;
a class is named by its tag, and only classes that the program has registered (states, methods, their
parts) are built.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from clusterfl.method import Registered

_DTYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16}
_DTYPES |= {torch.int8, torch.uint8, torch.bool}


def encode(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """(JSON-able structure, tensors by name)."""
    tensors: dict[str, Tensor] = {}

    def walk(v: Any) -> Any:
        if isinstance(v, Tensor):
            if v.dtype not in _DTYPES:
                raise TypeError(f"dtype={v.dtype} should be one of the plain real types")
            name = f"t{len(tensors)}"
            # a private, dense copy: safetensors refuses views that share storage
            tensors[name] = v.detach().clone(memory_format=torch.contiguous_format)
            return {"$t": name}
        if dataclasses.is_dataclass(v) and not isinstance(v, type):
            if not isinstance(v, Registered):
                raise TypeError(f"class={type(v).__name__} should be a State or Procedures class to be sent")
            body = {f.name: walk(getattr(v, f.name)) for f in dataclasses.fields(v) if f.init}
            return {"$c": type(v).tag(), "f": body}
        if isinstance(v, dict):
            return {"$d": [[walk(k), walk(x)] for k, x in v.items()]}
        if isinstance(v, list | tuple):
            return {"$l" if isinstance(v, list) else "$u": [walk(x) for x in v]}
        if isinstance(v, float) and not (v == v and abs(v) != float("inf")):
            return {"$f": repr(v)}
        if v is None or isinstance(v, bool | int | float | str):
            return v
        raise TypeError(f"value of type {type(v).__name__} should be a tensor, a number, text or a container")

    return walk(value), tensors


def decode(structure: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`encode`."""

    def walk(v: Any) -> Any:
        if not isinstance(v, dict):
            return v
        if "$t" in v:
            found = tensors[v["$t"]]
            if found.dtype not in _DTYPES:
                raise ValueError(f"dtype={found.dtype} should be one of the plain real types")
            return found
        if "$c" in v:
            return _build(Registered.find(v["$c"]), {k: walk(x) for k, x in v["f"].items()})
        if "$d" in v:
            return {walk(k): walk(x) for k, x in v["$d"]}
        if "$l" in v:
            return [walk(x) for x in v["$l"]]
        if "$u" in v:
            return tuple(walk(x) for x in v["$u"])
        if "$f" in v:
            return float(v["$f"])
        raise ValueError("message should hold only known kinds of values")

    return walk(structure)


def _build(cls: type[Any], given: dict[str, Any]) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    needed = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
    if not needed <= given.keys() <= fields.keys():
        raise ValueError(f"{cls.__name__} has other fields here: another version wrote it")
    return cls(**given)


def pack(value: Any) -> bytes:
    structure, tensors = encode(value)
    head = json.dumps(structure, separators=(",", ":")).encode()
    body = struct.pack("<Q", len(head)) + head + save_tensors(tensors)
    return hashlib.sha256(body).digest() + body


def unpack(message: bytes) -> Any:
    """The value of a message; ValueError, in one sentence, for anything that is not one."""
    try:
        # safetensors notices a truncated file but not a flipped bit, so the message has its own checksum
        digest, body = message[:32], message[32:]
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("its checksum is wrong")
        (length,) = struct.unpack_from("<Q", body)
        if length > len(body) - 8:
            raise ValueError("its header is longer than the message")
        structure = json.loads(body[8 : 8 + length].decode())
        return decode(structure, load_tensors(body[8 + length :]))
    except Exception as e:
        raise ValueError(f"message of {len(message)} bytes cannot be read: {e}") from e


def plain(fields: object) -> bool:
    """Whether a reply holds what a reply may hold; anybody may have sent it."""

    def tree(value: object) -> bool:
        return isinstance(value, dict) and all(isinstance(n, str) and isinstance(t, Tensor) for n, t in value.items())

    return isinstance(fields, dict) and all(
        isinstance(n, str) and (isinstance(v, Tensor) or tree(v)) for n, v in fields.items()
    )
