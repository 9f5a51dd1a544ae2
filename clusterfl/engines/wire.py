"""Serial, but every message goes to bytes and back and the method is rebuilt on the far side.

What passes here can be deployed: nothing but bytes crosses, and nothing is pickled. A transport may lose,
damage, repeat or delay messages; what comes back is matched by its token, counted once, or dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, take_row
from clusterfl.data.population import Population
from clusterfl.engines import codec
from clusterfl.engines.chunks import stack_fields
from clusterfl.engines.serial import Serial
from clusterfl.message import Fields
from clusterfl.method import Procedures, State
from clusterfl.task import Task

log = logging.getLogger(__name__)

# what the network makes of one reply: usually [reply], but also nothing, copies, or older messages
Transport = Callable[[bytes], list[bytes]]


@dataclass(frozen=True)
class Request(State):
    """What one client is sent."""

    token: int
    method: Procedures
    name: str
    client: int
    shared: Fields
    each: Fields
    key: Tensor
    round: int
    server: bool
    measure: bool
    test_of: Tensor | None  # evaluation on another client's test data, which only a simulation can do


@dataclass(frozen=True)
class Reply(State):
    """What it sends back; the token says which request it answers."""

    token: int
    fields: Fields


class Wire(Serial):
    """Counts, beside the payload, the bytes that really crossed (``wire_down``, ``wire_up``)."""

    def __init__(self, task: Task, population: Population, transport: Transport | None = None) -> None:
        super().__init__(task, population)
        self.transport = transport or (lambda reply: [reply])
        self.wire_down = self.wire_up = self.dropped = 0

    def execute(self, call: Call) -> Iterator[Chunk]:
        self.worker.before = {}
        for p, i in enumerate(call.ids.tolist()):
            each = {n: take_row(v, p) for n, v in call.each.items()}
            # the client's key is different in every call of every round, so no old reply can pass for this one
            token = int(call.client_key(i))
            one = call.only(torch.tensor([p]))
            request = Request(
                token,
                call.method,
                call.name,
                i,
                call.shared,
                each,
                call.key,
                call.round,
                call.server,
                call.measure,
                one.test_of,
            )
            fields = self._receive(call, i, token, self.transport(self._far_side(codec.pack(request))))
            if fields is not None:
                yield Chunk(torch.tensor([p]), stack_fields([fields]))
            else:
                self.take_back([i])

    def _receive(self, call: Call, client: int, token: int, messages: list[bytes]) -> Fields | None:
        """The one answer among what arrived; everything else is dropped and logged."""
        answer: Fields | None = None
        for message in messages:
            reason = ""
            try:
                reply = codec.unpack(message)
                if not isinstance(reply, Reply):
                    reason = "it is not a reply"
                elif reply.token != token:
                    reason = "it answers another request"
                elif answer is not None:
                    reason = "it came before"
                elif not codec.plain(reply.fields):
                    reason = "its fields should be tensors and trees of tensors"
                else:
                    answer = reply.fields
            except ValueError as e:
                reason = str(e)
            if reason:
                self.dropped += 1
                log.warning("%s: a message from client %d is dropped: %s", call.label, client, reason)
        return answer

    def rejections(self) -> int:
        return self.dropped

    def _far_side(self, message: bytes) -> bytes:
        """A client: it has its data, its state and this program, and gets only the message."""
        r: Request = codec.unpack(message)
        each = {n: stack_fields([{n: v}])[n] for n, v in r.each.items()}
        ids = torch.tensor([r.client])
        call = Call(r.method, r.name, ids, r.shared, each, r.key, r.round, r.server, r.measure, r.test_of)
        fields: Fields = {}
        for chunk in self.worker.run(call):
            fields = {n: take_row(v, 0) for n, v in chunk.fields.items()}
        reply = codec.pack(Reply(r.token, fields))
        self.wire_down += len(message)
        self.wire_up += len(reply)
        return reply
