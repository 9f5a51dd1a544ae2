"""What a node does not do, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterfl.engines import codec
from clusterfl.engines.flower.messages import Failure, Reply, Request
from clusterfl.federate.node import node_of
from tests.federate.fleet import Fleet, demo, run


@dataclass
class Listening(Fleet):
    """A fleet that also keeps the last letter to node-0."""

    letter: bytes = b""

    def send(self, kind: str, letters: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        if kind == "train":
            self.letter = letters["node-0"]
        return super().send(kind, letters, ttl)


def test_only_procedures_that_are_declared_for_clients_run_and_only_for_this_node(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 2, "method.name=ifca", "method.k=2", "rounds=1")
    listening = Listening(fleet.settings)
    run(federation, listening)
    node = node_of({"name": "node-0", **fleet.settings["node-0"]})
    request = codec.unpack(listening.letter)
    assert isinstance(request, Request) and isinstance(codec.unpack(node.answer(listening.letter)), Reply)
    for wrong, words in [
        (replace(request, procedure="round"), "IFCA.round should be a procedure that is declared for clients"),
        (replace(request, procedure="__class__"), "should be a procedure that is declared for clients"),
        (replace(request, name="node-1"), "the message is for node 'node-1', but this is 'node-0'"),
    ]:
        said = codec.unpack(node.answer(codec.pack(wrong)))
        assert isinstance(said, Failure) and words in said.reason, said
    with pytest.raises(ValueError, match="should be sent a hello, a request or a delivery"):
        node.answer(codec.pack(Reply(1, {})))
