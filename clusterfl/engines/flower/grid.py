"""Flower's grid as a post office: nodes by name, errors in words."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clusterfl.engines.flower.engine import Arrival
from clusterfl.engines.flower.records import WHO, from_record, to_record

log = logging.getLogger(__name__)

# Flower's error codes in words
ERRORS = {
    1: "its client app could not be loaded",
    2: "its client app failed",
    3: "the message or its answer did not arrive in time",
    4: "its answer was lost",
    5: "it lost its connection",
    6: "a modifier of its client app failed",
    7: "it refused the app",
    8: "its client app crashed",
}


def last_heard(node: Any) -> float:
    """When a node last gave a sign of life, in seconds since 1970: Flower takes it for gone after two intervals."""
    return float(node.online_until - 2 * node.heartbeat_interval)


class GridPost:
    """Nodes by their registered names; a name counts only with the key that belongs to it.

    ``since`` is when the server began: what its database took for connected before that may be gone.
    """

    def __init__(self, grid: Grid, keys: Mapping[str, bytes] | None = None, since: float = 0.0) -> None:
        self.grid, self.keys = grid, keys  # None: an insecure federation, whose nodes say themselves who they are
        self.since = since
        self.ids: dict[str, int] = {}
        self._said: dict[int, str] = {}

    def present(self) -> set[str]:
        nodes = [node for node in self.grid.get_nodes() if last_heard(node) >= self.since]
        if self.keys is None:
            self._ask({node.node_id for node in nodes} - self._said.keys())
            self.ids = {self._said[node.node_id]: node.node_id for node in nodes if node.node_id in self._said}
            return set(self.ids)
        self.ids = {}
        for node in nodes:
            if self.keys.get(node.name) == bytes(node.public_key):
                self.ids[node.name] = node.node_id
            elif node.node_id not in self._said:
                self._said[node.node_id] = node.name
                log.warning("node %r is ignored: its key is not the one of the roster", node.name)
        return set(self.ids)

    def _ask(self, unknown: set[int]) -> None:
        """Nodes without keys are asked for their names."""
        asking = [
            Message(RecordDict({WHO: ConfigRecord()}), dst_node_id=i, message_type="query", ttl=60.0) for i in unknown
        ]
        for reply in self.grid.send_and_receive(asking, timeout=60.0) if asking else ():
            if not reply.has_error() and WHO in reply.content:
                self._said[reply.metadata.src_node_id] = str(reply.content[WHO]["name"])

    def send(self, kind: str, letters: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        names = list(letters)
        messages = [
            Message(to_record(letters[n]), dst_node_id=self.ids[n], message_type=kind, ttl=max(ttl, 1.0)) for n in names
        ]
        ids: Iterable[str | None] = self.grid.push_messages(messages) if messages else []
        return {n: i for n, i in zip(names, ids, strict=False) if i}

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        return [arrival_of(message) for message in self.grid.pull_messages(ids)]


def arrival_of(message: Message) -> Arrival:
    """Errors that Flower itself reports come from node 1, so what a message answers is told by its id alone."""
    answered = message.metadata.reply_to_message_id
    if message.has_error():
        code, reason = message.error.code, message.error.reason or ""
        words = ERRORS.get(code, f"error {code}")
        last = reason.strip().splitlines()[-1:] if reason.strip() else []
        return Arrival(answered, None, ": ".join([words, *last]))
    try:
        return Arrival(answered, from_record(message.content))
    except ValueError as e:
        return Arrival(answered, None, str(e))
