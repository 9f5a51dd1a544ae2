"""Other simulators in the benchmark: those that are missing are named, those that fail are left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from clusterfl.bench import peers
from clusterfl.bench.measure import interleaved
from clusterfl.bench.peers import Peer, Peers, Turn
from clusterfl.bench.workloads import WORKLOADS
from clusterfl.commands.bench import lines


@contextmanager
def steady(*_: Any) -> Iterator[Turn]:
    yield lambda r: 9.0 if r == 0 else 2.0 + r


@contextmanager
def broken(*_: Any) -> Iterator[Turn]:
    raise TypeError("another version")
    yield lambda r: 0.0


@contextmanager
def breaks_later(*_: Any) -> Iterator[Turn]:
    def turn(r: int) -> float:
        if r == 1:
            raise AttributeError("gone")
        return 1.0

    yield turn


def test_missing_peers_are_named_and_failing_ones_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = {
        "steady": Peer("steady", ("fedavg",), ("torch",), steady),
        "broken": Peer("broken", ("fedavg",), ("torch",), broken),
        "later": Peer("later", ("fedavg",), ("torch",), breaks_later),
        "absent": Peer("no-such-package", ("fedavg",), ("no-such-package",), steady),
        "clustered": Peer("clustered", ("ifca",), ("torch",), steady),
    }
    monkeypatch.setattr(peers, "PEERS", made)
    nothing: Any = None
    with ExitStack() as stack:
        found = Peers(WORKLOADS["mclr"], nothing, nothing, stack)
        interleaved([*found.turns()], 3)
    assert found.seconds() == {"steady": 4.0}, "the first turn warms up"
    assert found.missing == {"absent": "no-such-package"}
    assert "broken is left out" in caplog.text and "later is left out" in caplog.text


def test_the_table_has_a_line_for_each_peer() -> None:
    got = {
        "seconds": 0.5,
        "speedup_vs_loop": 2.0,
        "speedup_vs_limit": 1.5,
        "loop_seconds": 1.0,
        "limit_seconds": 0.75,
        "training_seconds": None,
        "times_training": None,
        "evaluation_seconds": 0.1,
        "peak_mb": 100.0,
        "engine": "stacked",
        "data": "mnist",
        "peers": {"pfl": 1.0},
        "peers_not_installed": {"fluke": "fluke-fl"},
    }
    said = [line.strip() for line in lines("mclr", got)]
    assert said[2:] == ["pfl: 1.000 s, 2.00x as long", "fluke: not installed (pip install fluke-fl)"]


def test_every_peer_has_a_workload() -> None:
    methods = {work.method for work in WORKLOADS.values()}
    assert all(set(peer.methods) <= methods for peer in peers.PEERS.values())
