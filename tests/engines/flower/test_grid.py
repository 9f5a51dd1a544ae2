"""Flower's grid as a post office: names by keys, signs of life, errors in words."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="federations need the extra: pip install 'clusterfl[flower]'")

from flwr.app import ConfigRecord, RecordDict

from clusterfl.engines.flower.engine import Arrival
from clusterfl.engines.flower.grid import ERRORS, GridPost, arrival_of
from clusterfl.engines.flower.records import WHO, from_record, to_record


@dataclass(frozen=True)
class Info:
    node_id: int
    name: str
    public_key: bytes
    online_until: float = 160.0
    heartbeat_interval: float = 30.0


class Nodes:
    """A grid that only knows its nodes."""

    def __init__(self, *nodes: Info) -> None:
        self.nodes = nodes

    def get_nodes(self) -> tuple[Info, ...]:
        return self.nodes


def post(*nodes: Info, since: float = 0.0) -> GridPost:
    grid: Any = Nodes(*nodes)
    return GridPost(grid, {"rome": b"rome's", "oslo": b"oslo's"}, since)


def test_a_name_counts_only_with_its_key() -> None:
    found = post(Info(1, "rome", b"rome's"), Info(2, "oslo", b"another"), Info(3, "bern", b"bern's"))
    assert found.present() == {"rome"} and found.ids == {"rome": 1}


def test_a_node_that_was_last_heard_before_the_server_began_is_not_there_yet() -> None:
    nodes = Info(1, "rome", b"rome's", 160.0), Info(2, "oslo", b"oslo's", 170.0)
    assert post(*nodes, since=105.0).present() == {"oslo"}  # heard at 100 and at 110


def test_without_keys_nodes_are_asked_for_their_names_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower builds messages only within a run, so theirs are stood in for."""
    monkeypatch.setattr("clusterfl.engines.flower.grid.Message", lambda content, dst_node_id, **_: dst_node_id)
    asked: list[list[int]] = []

    class Insecure(Nodes):
        def send_and_receive(self, messages: list[int], timeout: float) -> list[Any]:
            asked.append(messages)
            names = {1: "rome", 2: "oslo"}
            return [
                SimpleNamespace(
                    metadata=SimpleNamespace(src_node_id=i),
                    content={WHO: {"name": names[i]}},
                    has_error=lambda i=i: i == 2 and len(asked) == 1,
                )
                for i in messages
            ]

    grid: Any = Insecure(Info(1, "", b""), Info(2, "", b""))
    found = GridPost(grid, None)
    assert found.present() == {"rome"}  # the other one could not answer yet
    assert found.present() == {"rome", "oslo"} == found.present()
    assert [sorted(i) for i in asked] == [[1, 2], [2]]


@dataclass(frozen=True)
class Failed:
    """A message as Flower reports an error: from node 1, whoever was asked."""

    code: int
    reason: str = ""

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(reply_to_message_id="id-7", src_node_id=1)

    @property
    def error(self) -> Any:
        return self

    def has_error(self) -> bool:
        return True


def test_flowers_errors_are_told_in_words() -> None:
    from flwr.common.constant import ErrorCode

    known = {code for name, code in vars(ErrorCode).items() if name.isupper() and isinstance(code, int) and code}
    assert known == ERRORS.keys(), "Flower has other errors now"
    told: Any = Failed(5)
    assert arrival_of(told) == Arrival("id-7", None, "it lost its connection")
    told = Failed(2, "Traceback\n  line\nKeyError: 'x'\n")
    assert arrival_of(told).error == "its client app failed: KeyError: 'x'"
    told = Failed(99)
    assert arrival_of(told).error == "error 99"


def test_bytes_go_through_a_record() -> None:
    for message in (b"", b"abc", bytes(range(256)) * 50):
        assert from_record(to_record(message)) == message
    with pytest.raises(ValueError, match="should hold one message"):
        from_record(RecordDict({"clusterfl": ConfigRecord({"message": "text"})}))
