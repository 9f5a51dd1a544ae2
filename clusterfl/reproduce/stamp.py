"""What a picture shows, as a digest in a text chunk of the PNG itself, so that a stale one is noticed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"clusterfl-shows"


def write_stamp(path: Path, text: str) -> None:
    """Adds the text before the end of a PNG, in place of an earlier one."""
    kept = [(kind, body) for kind, body in _chunks(path.read_bytes()) if not (kind == b"tEXt" and _ours(body))]
    kept.insert(-1, (b"tEXt", KEYWORD + b"\0" + text.encode("latin-1")))
    path.write_bytes(SIGNATURE + b"".join(_chunk(kind, body) for kind, body in kept))


def read_stamp(path: Path) -> str | None:
    """The text; None where there is none."""
    for kind, body in _chunks(path.read_bytes()):
        if kind == b"tEXt" and _ours(body):
            return body.partition(b"\0")[2].decode("latin-1")
    return None


def _ours(body: bytes) -> bool:
    return body.partition(b"\0")[0] == KEYWORD


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(SIGNATURE)
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += 12 + length


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
