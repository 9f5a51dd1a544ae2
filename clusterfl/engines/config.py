"""The ``[engine]`` table of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusterfl.fields import above, at_least, option

EngineName = Literal["auto", "serial", "stacked", "pool", "ray", "wire", "flower"]


@dataclass(frozen=True)
class EngineConfig:
    """Which engine, and its sizes."""

    name: EngineName = option(
        "auto", "auto (measured, then written here) | serial | stacked | pool | ray | wire | flower"
    )
    chunk: int = option(64, "clients computed together, where they are stacked")
    spread: float = option(1.25, "clients computed together differ at most by this factor in size")
    workers: int | None = option(None, "pool: processes, ray: actors; unset: one per core")
    stacked: bool | None = option(
        None, "pool, ray: whether workers stack clients; unset: unless the model has convolutions"
    )
    address: str | None = option(None, 'ray: a running cluster ("auto" or "host:port"); unset: one on this machine')
    channels_last: bool = option(False, "images in the order that convolutions on CPUs like")
    guard: bool = option(True, "check every reply; a bad one is rejected and the round goes on")
    clip_updates: float | None = option(None, "the server cuts longer updates to this length")

    def __post_init__(self) -> None:
        at_least(1, self, "chunk", "workers", "spread")
        above(0, self, "clip_updates")
        if self.address is not None and self.address != "auto" and ":" not in self.address:
            raise ValueError(f"address={self.address!r} should be 'auto' or 'host:port'")
