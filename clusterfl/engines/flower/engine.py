"""The server's side: each call becomes one message per node, and what comes back is matched, checked and counted.

A round never waits longer than its deadline. Nodes that are away, fail or come late are named and left out; a call
with fewer replies than ``least`` leaves the state as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk, take_row
from clusterfl.data.population import Population
from clusterfl.engines import codec
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.chunks import Plan, stack_fields
from clusterfl.engines.flower.messages import (
    Answer,
    Failure,
    Place,
    Problem,
    Reading,
    Reply,
    Request,
    bound_of,
    read_answer,
)
from clusterfl.engines.worker import Worker
from clusterfl.errors import ClusterflError, NoReplies
from clusterfl.fields import above, at_least, option
from clusterfl.message import Fields
from clusterfl.task import Task
from clusterfl.tree import Tree

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """How long the server waits, and for how many."""

    timeout: float = option(600.0, "seconds that nodes have to answer one message")
    least: int = option(1, "replies that a call needs; with fewer the round leaves the models as they were")
    wait: float = option(600.0, "seconds that nodes have to connect before the first round")
    patience: int = option(3, "rounds in a row without enough replies after which the run is stopped, to be resumed")
    poll: float = option(1.0, "seconds between two looks for replies")

    def __post_init__(self) -> None:
        above(0, self, "timeout", "poll")
        at_least(0, self, "wait")
        at_least(1, self, "least", "patience")


@dataclass(frozen=True)
class Arrival:
    """What came back for one message: its content, or what went wrong."""

    reply_to: str
    content: bytes | None
    error: str = ""


class Post(Protocol):
    """Carries messages between the server and its nodes, by name."""

    def present(self) -> set[str]:
        """The nodes that are connected now."""
        ...

    def send(self, kind: str, letters: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        """Sends each node its letter; returns the id of every message that is under way, by node."""
        ...

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        """What has come back for these messages since the last look."""
        ...


@dataclass
class Seen:
    """What the server knows of a node."""

    last: float | None = None  # seconds since 1970, of its last answer
    rounds: int = 0  # in which it took part
    epoch: int = -1
    failed: int = 0
    rejected: int = 0  # replies that were turned down
    reason: str = ""  # of its last failure
    void: list[int] = field(default_factory=list)  # requests since its last reply whose replies do not count


@dataclass
class Exchange:
    """Sends letters and gathers answers until all are there or the time is over."""

    post: Post
    terms: Terms
    seen: dict[str, Seen] = field(default_factory=dict)
    dropped: int = 0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(
        self, label: str, kind: str, letters: Mapping[str, bytes], tokens: Mapping[str, int]
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """(answers, failures in words), by node; both in the order of the letters."""
        answers: dict[str, Answer] = {}
        failures: dict[str, str] = {}
        end = self.clock() + self.terms.timeout
        here = self.wait_for(set(letters), min(self.terms.least, len(letters)), end)
        failures |= {name: "it is not connected" for name in letters if name not in here}
        under_way = self.post.send(kind, {n: b for n, b in letters.items() if n in here}, end - self.clock())
        failures |= {name: "the message could not be sent" for name in here if name not in under_way}
        waiting = {message: name for name, message in under_way.items()}
        while waiting:
            for arrival in self.post.collect(list(waiting)):
                name = waiting.pop(arrival.reply_to, None)
                if name is None:
                    self._drop(label, "an unknown node", "nobody waits for it, or it came before")
                    continue
                fault = arrival.error
                if arrival.content is not None:
                    try:
                        answer = read_answer(arrival.content, tokens[name], bound_of(letters[name]))
                        if isinstance(answer, Failure):
                            fault = answer.reason
                        else:
                            answers[name] = answer
                            self.seen.setdefault(name, Seen()).last = time.time()
                    except ValueError as e:
                        self._drop(label, name, str(e))
                        fault = str(e)
                if fault:
                    failures[name] = fault
            if waiting and self.clock() >= end:
                failures |= dict.fromkeys(waiting.values(), f"it did not answer within {self.terms.timeout:g} s")
                break
            if waiting:
                self.sleep(self.terms.poll)
        for name, reason in failures.items():
            log.warning("%s: node %r is left out: %s", label, name, reason)
            seen = self.seen.setdefault(name, Seen())
            seen.failed, seen.reason = seen.failed + 1, f"{label}: {reason}"
        return {n: answers[n] for n in letters if n in answers}, failures

    def wait_for(self, names: set[str], least: int, end: float) -> set[str]:
        """Those of the nodes that are connected; waits, as long as there is time, until they are ``least``."""
        while True:
            here = names & self.post.present()
            if len(here) >= least or self.clock() >= end:
                return here
            self.sleep(self.terms.poll)

    def place_for(self, name: str, place: Place) -> Place:
        """The place of a request to a node, which is told with it what of its work does not count."""
        return replace(place, void=tuple(self.seen.get(name, Seen()).void))

    def _drop(self, label: str, name: str, reason: str) -> None:
        self.dropped += 1
        log.warning("%s: a message from %s is dropped: %s", label, name, reason)
        if name in self.seen:
            self.seen[name].rejected += 1


class Flower(BaseEngine):
    """An engine whose clients are the nodes ``names``, client i the i-th of them."""

    far = True

    def __init__(
        self,
        task: Task,
        population: Population,
        exchange: Exchange,
        names: Sequence[str],
        problem: Problem,
        reading: Reading,
        place: Place,
    ) -> None:
        super().__init__(task, population)
        self.exchange, self.names, self.place = exchange, list(names), place
        self.problem, self.reading = problem, reading
        self.tokens: dict[str, int] = {}  # of the call under way
        self.short = 0  # training calls in a row that had too few replies
        self.worker = Worker(task, population.train, population.test, Plan())  # server work: no client behind it

    def execute(self, call: Call) -> Iterator[Chunk]:
        if call.server:
            yield from self.worker.run(call)
            return
        letters: dict[str, bytes] = {}
        tokens: dict[str, int] = {}
        for p, i in enumerate(call.ids.tolist()):
            name = self.names[i]
            tokens[name] = int(call.client_key(i))  # different in every call of every round
            letters[name] = codec.pack(self._request(call, p, i, tokens[name]))
        kind = "evaluate" if call.measure else "train"
        answers, failures = self.exchange.run(call.label, kind, letters, tokens)
        self.tokens = tokens
        replies = {name: a.fields for name, a in answers.items() if isinstance(a, Reply)}
        for name in replies:  # it was told with the request what does not count, and has seen to it
            self.exchange.seen.setdefault(name, Seen()).void.clear()
        if not call.measure:
            self.take_back([i for i in call.ids.tolist() if self.names[i] not in replies])
            self._check_enough(call, replies, failures)
        for p, i in enumerate(call.ids.tolist()):
            fields = replies.get(self.names[i])
            if fields is not None:
                self._note(call, self.names[i])
                yield Chunk(torch.tensor([p]), stack_fields([fields]))

    def _request(self, call: Call, position: int, client: int, token: int) -> Request:
        if call.test_of is not None:
            raise ValueError("a node's test data should stay on the node: only a simulation can lend it to others")
        each = {n: take_row(v, position) for n, v in call.each.items()}
        return Request(
            token,
            self.names[client],
            client,
            self.exchange.place_for(self.names[client], self.place),
            self.problem,
            self.reading,
            call.method,
            call.name,
            call.shared,
            each,
            call.key,
            call.round,
            call.measure,
        )

    def _check_enough(self, call: Call, replies: Mapping[str, Fields], failures: Mapping[str, str]) -> None:
        if len(replies) >= min(self.exchange.terms.least, len(call.ids)):
            self.short = 0
            return
        self.short += 1
        self.take_back([i for i in call.ids.tolist() if self.names[i] in replies])  # they count as little as the others
        said = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        log.warning("%s: %d replies of %d, but %d are needed", call.label, len(replies), len(call.ids), self.least)
        if self.short >= self.exchange.terms.patience:
            raise ClusterflError(
                f"{call.label} should have {self.least} replies, but {self.short} times in a row had fewer ({said}); "
                "mend the nodes and resume"
            )
        raise NoReplies(f"{call.label} ({said})")

    @property
    def least(self) -> int:
        return self.exchange.terms.least

    def _note(self, call: Call, name: str) -> None:
        seen = self.exchange.seen.setdefault(name, Seen())
        if not call.measure and self.place.epoch > seen.epoch:
            seen.epoch = self.place.epoch
            seen.rounds += self.place.epoch > 0

    def rejections(self) -> int:
        return self.exchange.dropped

    def note_rejection(self, client: int) -> None:
        self.exchange.seen.setdefault(self.names[client], Seen()).rejected += 1

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]:
        raise RuntimeError("what single samples score should stay on the nodes (Engine.far)")

    def states(self) -> dict[int, Tree]:
        """Nodes keep their own, on their own disks."""
        return {}

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        """Nodes look at what they keep themselves (node.py)."""
        return {}

    def take_back(self, clients: list[int]) -> None:
        """Told to the node with its next request."""
        for i in clients:
            self.exchange.seen.setdefault(self.names[i], Seen()).void.append(self.tokens[self.names[i]])

    def set_states(self, states: dict[int, Tree]) -> None:
        if states:
            log.warning("what %d clients kept in a simulation does not go to their nodes", len(states))
