"""A message as Flower carries it. Without PyTorch: a node's client app is a new process for every message."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

CONTENT, PART, WHO = "clusterfl", "message", "who"


def to_record(message: bytes) -> RecordDict:
    """Bytes as one array, which Flower sends in pieces however long it is."""
    return RecordDict({CONTENT: ArrayRecord({PART: Array(np.frombuffer(message, dtype=np.uint8))})})


def from_record(record: RecordDict) -> bytes:
    """The bytes of a message; ValueError for anything else."""
    try:
        flat: Any = record[CONTENT][PART].numpy()  # type: ignore[union-attr]
    except Exception as e:
        raise ValueError(f"it should hold one message, but: {type(e).__name__} {e}") from e
    if flat.dtype != np.uint8 or flat.ndim != 1:
        raise ValueError("its content should be bytes")
    found: bytes = flat.tobytes()
    return found
