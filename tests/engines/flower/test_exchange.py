"""Letters and answers: matched by their ids, counted once, never waited for beyond the deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from clusterfl.engines import codec
from clusterfl.engines.flower.engine import Arrival, Exchange, Terms
from clusterfl.engines.flower.messages import (
    ROOM,
    Answer,
    Failure,
    Hello,
    Introduction,
    Reading,
    Receipt,
    Reply,
    bound_of,
    read_answer,
)


@dataclass
class Scripted:
    """A post office that brings, look by look, what it was told to."""

    nodes: set[str]
    looks: list[list[Arrival]]
    sent: dict[str, bytes] = field(default_factory=dict)

    def present(self) -> set[str]:
        return self.nodes

    def send(self, kind: str, letters: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        self.sent = dict(letters)
        return {name: f"id-{name}" for name in letters}

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        return self.looks.pop(0) if self.looks else []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def exchange(post: Scripted, **terms: float) -> Exchange:
    clock = Clock()
    return Exchange(post, Terms(**{"timeout": 10.0, **terms}), clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]


def reply(name: str, token: int, value: float = 1.0) -> Arrival:
    return Arrival(f"id-{name}", codec.pack(Reply(token, {"n": torch.tensor(value)})))


TOKENS = {"rome": 1, "oslo": 2, "bern": 3}
LETTERS = dict.fromkeys(TOKENS, b"letter")


def test_answers_are_matched_by_id_and_come_in_the_order_of_the_letters() -> None:
    post = Scripted(set(TOKENS), [[reply("bern", 3)], [], [reply("rome", 1), reply("oslo", 2)]])
    answers, failures = exchange(post).run("a.b", "train", LETTERS, TOKENS)
    assert list(answers) == ["rome", "oslo", "bern"] and not failures


def test_what_comes_twice_late_or_for_another_request_is_dropped() -> None:
    wrong = Arrival("id-oslo", codec.pack(Reply(99, {"n": torch.tensor(1.0)})))
    post = Scripted(set(TOKENS), [[reply("rome", 1), reply("rome", 1, 5.0), wrong], [reply("old", 7)]])
    asked = exchange(post)
    answers, failures = asked.run("a.b", "train", LETTERS, TOKENS)
    assert list(answers) == ["rome"] and float(answers["rome"].fields["n"]) == 1.0  # type: ignore[union-attr]
    assert "another request" in failures["oslo"] and "did not answer within 10 s" in failures["bern"]
    assert asked.dropped == 3 and asked.seen["bern"].failed == 1 and asked.clock() >= 10.0


def test_a_failure_on_a_node_is_told_in_its_words() -> None:
    said = Arrival("id-rome", codec.pack(Failure(1, "its disk is full")))
    lost = Arrival("id-oslo", None, "it lost its connection")
    post = Scripted({"rome", "oslo"}, [[said, lost]])
    answers, failures = exchange(post).run("a.b", "train", LETTERS, TOKENS)
    assert not answers
    assert failures == {
        "bern": "it is not connected",
        "rome": "its disk is full",
        "oslo": "it lost its connection",
    }
    assert set(post.sent) == {"rome", "oslo"}


def test_nodes_are_waited_for_until_enough_are_there() -> None:
    post = Scripted(set(), [])
    asked = exchange(post, least=2)
    asked.sleep = lambda seconds: post.nodes.add(f"node{len(post.nodes)}")
    assert asked.wait_for({"node0", "node1", "node2"}, 2, 100.0) == {"node0", "node1"}


def test_an_answer_that_is_too_long_is_not_decoded() -> None:
    request = b"x" * 10
    assert bound_of(request) == ROOM + 40
    message = codec.pack(Reply(1, {"n": torch.tensor(1.0)}))
    with pytest.raises(ValueError, match="should be at most 5"):
        read_answer(message, 1, 5)


@pytest.mark.parametrize("value", [Hello(1, "rome", Reading("unit", 0.2)), Reply(1, {"n": "text"})])  # type: ignore[dict-item]
def test_only_answers_are_answers(value: object) -> None:
    with pytest.raises(ValueError, match="should be"):
        read_answer(codec.pack(value), 1, 1 << 20)


def test_an_introduction_comes_back_as_it_was() -> None:
    said = Introduction(4, 10, 3, (1, 8, 8), ("rose", "tulip"), "", (), ("age", "ward"), (("er", "icu"),))
    assert read_answer(codec.pack(said), 4, 1 << 20) == said


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (Introduction(4, "10", 3, (8,), ()), "train"),  # type: ignore[arg-type]
        (Introduction(4, 10, 3, [8], ()), "input_shape"),  # type: ignore[arg-type]
        (Introduction(4, 10, 3, (8,), ("rose", 1)), "classes"),  # type: ignore[arg-type]
        (Introduction(4, 10, 3, (8,), (), words=("icu",)), "words"),  # type: ignore[arg-type]
        (Receipt(4, 10, None, 1, 5.0), "score"),  # type: ignore[arg-type]
        (Failure(4, 7), "reason"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_other_types_is_none(wrong: Answer, what: str) -> None:
    """A node can send what it likes, and the server adds and compares it."""
    with pytest.raises(ValueError, match=f"its {what} should be of another type"):
        read_answer(codec.pack(wrong), 4, 1 << 20)


def test_terms_are_checked() -> None:
    for wrong in ({"timeout": 0.0}, {"least": 0}, {"patience": 0}):
        with pytest.raises(ValueError, match="should be"):
            Terms(**wrong)  # type: ignore[arg-type]
