"""Serial, but every message goes to bytes and back and the method is rebuilt on the far side.

What passes here can be deployed: nothing but bytes crosses, and nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterfl import codec
from clusterfl.client import Call, Chunk, Fields
from clusterfl.data.population import Population
from clusterfl.engines.serial import Serial
from clusterfl.engines.worker import _at, _stack_fields
from clusterfl.method import Procedures, State
from clusterfl.task import Task


@dataclass(frozen=True)
class Request(State):
    """What one client is sent."""

    method: Procedures
    name: str
    client: int
    shared: Fields
    each: Fields
    key: Tensor
    round: int
    server: bool
    measure: bool


class Wire(Serial):
    """Counts, beside the payload, the bytes that really crossed (``wire_down``, ``wire_up``)."""

    def __init__(self, task: Task, population: Population) -> None:
        super().__init__(task, population)
        self.wire_down = self.wire_up = 0

    def execute(self, call: Call) -> Iterator[Chunk]:
        for p, i in enumerate(call.ids.tolist()):
            each = {n: _at(v, p) for n, v in call.each.items()}
            request = Request(
                call.method, call.name, i, call.shared, each, call.key, call.round, call.server, call.measure
            )
            reply = self._far_side(codec.pack(request))
            fields = codec.unpack(reply)
            yield Chunk(torch.tensor([p]), _stack_fields([fields]))

    def _far_side(self, message: bytes) -> bytes:
        """A client: it has its data, its state and this program, and gets only the message."""
        r: Request = codec.unpack(message)
        each = {n: _stack_fields([{n: v}])[n] for n, v in r.each.items()}
        call = Call(r.method, r.name, torch.tensor([r.client]), r.shared, each, r.key, r.round, r.server, r.measure)
        fields: Fields = {}
        for chunk in self.worker.run(call):
            fields = {n: _at(v, 0) for n, v in chunk.fields.items()}
        reply = codec.pack(fields)
        self.wire_down += len(message)
        self.wire_up += len(reply)
        return reply
