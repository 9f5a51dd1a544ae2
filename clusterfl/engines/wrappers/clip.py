"""The server's own limit on how far a client may move a model."""

from __future__ import annotations

from clusterfl.call import Call, Chunk
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers.updates import Changing, norms, put, scaled, updates


class Clip(Changing):
    """An update longer than ``limit`` is cut to that length, whoever sent it."""

    def __init__(self, inner: BaseEngine, limit: float) -> None:
        if not limit > 0:
            raise ValueError(f"clip_updates={limit} should be above 0")
        super().__init__(inner)
        self.limit = limit

    def change(self, call: Call, chunk: Chunk) -> Chunk:
        start, moves = updates(self.task, call, chunk)
        if not moves:
            return chunk
        length = norms(moves)
        return put(chunk, start, scaled(moves, self.limit / length), length > self.limit)
