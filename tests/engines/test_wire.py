"""Over the wire: bytes, and what a bad network does to them."""

from __future__ import annotations

from clusterfl.engines import Wire
from clusterfl.testing.small import small_population, small_task
from tests.engines.probe import Probe, cohort


def test_damaged_repeated_and_late_messages() -> None:
    """A message that is flipped or cut is dropped; one that comes twice counts once; an old one never counts."""
    old: list[bytes] = []

    def transport(reply: bytes) -> list[bytes]:
        old.append(reply)
        turn = len(old) - 1
        if turn % 4 == 0:
            at = (turn * 7919) % len(reply)
            return [reply[:at] + bytes([reply[at] ^ (1 << turn % 8)]) + reply[at + 1 :]]
        if turn % 4 == 1:
            return [reply[: len(reply) * (turn % 5) // 5]]
        return [reply, reply] if turn % 4 == 2 else [old[turn - 1], reply]

    wire = Wire(small_task(), small_population(), transport)
    got = cohort(wire).run(Probe().count)
    assert got.ids.tolist() == [i for i in range(12) if i % 4 >= 2]
    assert wire.dropped == 12
