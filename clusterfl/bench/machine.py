"""What a machine is doing beside us, and how much memory we take of it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from clusterfl.engines.auto import usable_cores
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.pool import Pool

IDLE = 0.3  # seconds of waiting before a workload: what is busy then is not ours


class Reading(NamedTuple):
    """Seconds so far: of the clock, of our cores at work for anybody, and of processors at work for us."""

    clock: float
    cores: float
    ours: float


def load_per_core() -> float:
    """How busy others keep the cores that we may use, from 0 to 1; 0 where the system does not tell."""
    before = reading()
    if before is None:
        return 0.0
    time.sleep(IDLE)
    after = reading()
    return 0.0 if after is None else load_between(before, after) / usable_cores()


def load_between(before: Reading, after: Reading) -> float:
    """How many cores others kept busy from one reading to the next."""
    others = (after.cores - before.cores) - (after.ours - before.ours)
    return max(0.0, others) / (after.clock - before.clock)


def reading() -> Reading | None:
    """As of now; None where there is no ``/proc/stat``."""
    try:
        ticks = busy_ticks(Path("/proc/stat").read_text(), os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return None
    own = os.times()  # of this process and of its children that have ended; those of earlier workloads have
    return Reading(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), sum(own[:4]))


def busy_ticks(stat: str, cores: Collection[int]) -> int:
    """What these cores have worked in all, of the text of ``/proc/stat``: all but idle and waiting for disks."""
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    times = [list(map(int, values)) for name, *values in lines if name in {f"cpu{c}" for c in cores}]
    return sum(sum(t[:3]) + sum(t[5:8]) for t in times)


def peak_mb(engine: BaseEngine) -> float:
    """Peak resident memory of this process and the engine's workers (shared pages counted once per process)."""
    pids = [os.getpid()]
    if isinstance(engine, Pool):
        pids += [member.process.pid for member in engine._members]
    return sum(peak_kb(pid) for pid in pids) / 1024


def peak_kb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1])
    except OSError:
        pass
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return float(line.split()[1]) / 1024
    return 0.0
