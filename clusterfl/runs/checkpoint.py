"""A run that cannot be lost: checkpoints that are whole or absent, and a journal of what was measured.

``DIR/checkpoints/round-000012.ckpt`` holds everything that the next round needs, as one checksummed
message (codec). It is written to a temporary file, synced and renamed, and the folder is synced; the last
two are kept, so that a damaged one costs a round, not the run. ``records.log`` grows by one checksummed
entry a round, with what changed in it; a resume cuts it back to the checkpoint's round.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clusterfl.config import CheckpointConfig
from clusterfl.engines import codec
from clusterfl.errors import ClusterflError
from clusterfl.loop import Simulation
from clusterfl.method import Method, State
from clusterfl.record import Record
from clusterfl.runs.files import append, read_bounded, write_whole
from clusterfl.tree import put

log = logging.getLogger(__name__)

FORMAT = 4
LARGEST = 1 << 36  # bytes of a checkpoint: a file larger than this is none


class CheckpointError(ClusterflError):
    """A checkpoint that is missing, damaged or belongs to another run."""


class OtherRun(CheckpointError):
    """A checkpoint of another config or other data: none of its folder will do."""


@dataclass(frozen=True)
class Snapshot(State):
    """All that a run is, between two rounds."""

    format: int
    version: str  # of the program that wrote it
    config: str  # digest of what may not change
    data: str  # digest of the population
    round: int
    state: Any
    kept: Any  # client id -> what it keeps
    traffic: dict[str, dict[str, int]]  # bytes down, up and by field
    account: Any  # privacy: what clients have released, or None


@dataclass(frozen=True)
class Entry(State):
    """A round of the journal: its record without the clients that stayed in their cluster."""

    record: Record  # nobody is in its ``assign``
    moved: Tensor  # ids of those whose cluster is another than in the round before; of round 0 all
    to: Tensor

    @staticmethod
    def of(record: Record, before: Record | None) -> Entry:
        assign = record.assign
        moved = torch.arange(len(assign)) if before is None else (assign != before.assign).nonzero().flatten()
        return Entry(replace(record, assign=assign[:0]), moved, assign[moved])

    def whole(self, before: Record | None) -> Record:
        """The record again; ValueError where it does not follow the one before."""
        if before is None:
            return replace(self.record, assign=self.to)
        if len(self.moved) != len(self.to) or (len(self.moved) and int(self.moved.max()) >= len(before.assign)):
            raise ValueError("clients moved that there are not")
        return replace(
            self.record, assign=put(before.assign, self.moved, self.to) if len(self.moved) else before.assign
        )


class Checkpoints:
    """The checkpoints of one run's folder."""

    def __init__(self, folder: Path, rule: CheckpointConfig, *, config: str, data: str, version: str) -> None:
        self.folder = folder / "checkpoints"
        self.config, self.data, self.version = config, data, version
        self.every, self.keep = rule.every, rule.keep

    def save(self, sim: Simulation) -> None:
        """Writes the journal's new entry and, every few rounds, a checkpoint."""
        if not self.every:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal(Entry.of(sim.records[-1], sim.records[-2] if len(sim.records) > 1 else None))
        if sim.round % self.every and sim.round != sim.schedule.rounds:
            return
        snapshot = Snapshot(
            FORMAT,
            self.version,
            self.config,
            self.data,
            sim.round,
            sim.state,
            sim.engine.states(),
            asdict(sim.engine.traffic),
            sim.engine.account(),
        )
        write_whole(self.folder / f"round-{sim.round:06d}.ckpt", codec.pack(snapshot))
        for old in self._files()[: -self.keep]:
            old.unlink()

    def restore(self, sim: Simulation) -> bool:
        """Puts the newest whole checkpoint into ``sim``; False where there is none at all."""
        files = self._files()
        for path in reversed(files):
            try:
                snapshot = read_snapshot(path)
                self._check(path, snapshot)
                check_fits(path, snapshot, sim.method, len(sim.ids))
                records = list(self._records(snapshot.round))
            except OtherRun:
                raise
            except CheckpointError as e:
                log.warning("%s; the one before it is used", e)
                continue
            sim.state, sim.round, sim.records = snapshot.state, snapshot.round, records
            sim.engine.set_states(snapshot.kept)
            sim.engine.set_account(snapshot.account)
            for direction, counted in snapshot.traffic.items():
                getattr(sim.engine.traffic, direction).update(counted)
            self._cut_journal(snapshot.round)
            return True
        if files:
            raise CheckpointError(f"no checkpoint in {self.folder} can be read; the run has to be started again")
        self._log.unlink(missing_ok=True)
        return False

    def _check(self, path: Path, snapshot: Snapshot) -> None:
        for what, mine, its in (("config", self.config, snapshot.config), ("data", self.data, snapshot.data)):
            if mine != its:
                raise OtherRun(f"{path.name} was written with another {what}; resume it with the same one")
        if snapshot.version != self.version:
            log.warning("%s was written by version %s: the last bits may differ", path.name, snapshot.version)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.ckpt"))

    # -- the journal of records -----------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self.folder / "records.log"

    def _journal(self, value: Entry) -> None:
        entry = codec.pack(value)
        append(self._log, struct.pack("<Q", len(entry)) + entry)

    def _records(self, last: int) -> Iterator[Record]:
        wanted, before = 0, None
        for _, entry in entries_of(self._log):
            if wanted > last:
                return
            try:
                before = record_of(entry, before)
            except ValueError as e:
                raise CheckpointError(f"{self._log.name} is damaged at round {wanted} ({e})") from e
            if before is None:
                raise CheckpointError(f"{self._log.name} has something else in place of round {wanted}")
            wanted += 1
            yield before
        if wanted <= last:
            raise CheckpointError(f"{self._log.name} ends before round {last}")

    def _cut_journal(self, last: int) -> None:
        """Drops what was measured after the checkpoint: those rounds are run again."""
        ends = [end for end, _ in entries_of(self._log)]
        with self._log.open("r+b") as f:
            f.truncate(ends[last])
            os.fsync(f.fileno())


def entries_of(journal: Path) -> Iterator[tuple[int, bytes]]:
    """(where it ends, entry), up to the first that is not whole."""
    if not journal.exists():
        return
    data, at = journal.read_bytes(), 0
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 8 + length > len(data):
            return
        yield at + 8 + length, data[at + 8 : at + 8 + length]
        at += 8 + length


def record_of(entry: bytes, before: Record | None) -> Record | None:
    """The record of a journal's entry that follows ``before``; None where it is something else."""
    value = codec.unpack(entry)
    wanted = 0 if before is None else before.round + 1
    return value.whole(before) if isinstance(value, Entry) and value.record.round == wanted else None


def read_journal(folder: Path) -> list[Record]:
    """The records of a run's folder, as far as they are whole; none where it keeps no journal."""
    found: list[Record] = []
    for _, entry in entries_of(folder / "checkpoints" / "records.log"):
        try:
            record = record_of(entry, found[-1] if found else None)
        except ValueError:
            break
        if record is None:
            break
        found.append(record)
    return found


def newest_snapshot(folder: Path, method: Method[Any] | None = None, clients: int = 0) -> Snapshot:
    """The newest whole checkpoint of a run's folder, and of this method where it is given."""
    for path in sorted((folder / "checkpoints").glob("round-*.ckpt"), reverse=True):
        try:
            snapshot = read_snapshot(path)
            if method is not None:
                check_fits(path, snapshot, method, clients)
            return snapshot
        except CheckpointError as e:
            log.warning("%s; the one before it is used", e)
    raise CheckpointError(f"{folder} should hold a checkpoint; run it with checkpoint.every of at least 1")


def check_fits(path: Path, snapshot: Snapshot, method: Method[Any], clients: int) -> None:
    """Refuses what is whole and yet nothing that this run could have written."""
    wrong = misfit(snapshot, method, clients)
    if wrong:
        raise CheckpointError(f"checkpoint {path.name} is not of this run ({wrong})")


def misfit(snapshot: Snapshot, method: Method[Any], clients: int) -> str:
    """What in a whole checkpoint this run could not have written, or ''."""
    counts = [n for d in snapshot.traffic.values() for n in d.values()] if _is_tree(snapshot.traffic, dict) else [None]
    kept = snapshot.kept
    if not isinstance(snapshot.round, int) or snapshot.round < 0:
        return f"its round is {snapshot.round!r}"
    if not all(isinstance(n, int) for n in counts) or not snapshot.traffic.keys() <= {"down", "up", "fields"}:
        return "its traffic is not counted in bytes"
    if not isinstance(kept, dict) or not all(isinstance(i, int) and _is_tree(t, Tensor) for i, t in kept.items()):
        return "what its clients keep are no tensors"
    account = snapshot.account
    if account is not None and not isinstance(account, Tensor) and not _is_tree(account, Tensor):
        return "its account of privacy are no tensors"
    try:
        served = method.serve(snapshot.state, torch.arange(clients))
        index = served.index
        fits = _is_tree(served.models, Tensor) and index.shape == (clients,) and index.dtype == torch.int64
        if fits and (not clients or (int(index.min()) >= 0 and int(index.max()) < served.k)):
            return ""
    except Exception as e:
        return f"its state is another one: {type(e).__name__}: {e}"
    return "its clients use models that are not there"


def _is_tree(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(n, str) and isinstance(v, kind) for n, v in value.items())


def read_snapshot(path: Path) -> Snapshot:
    """A checkpoint's content; CheckpointError, in one sentence, for anything that is not one."""
    try:
        snapshot = codec.unpack(read_bounded(path, LARGEST))
    except (ValueError, OSError, ClusterflError) as e:
        raise CheckpointError(f"checkpoint {path.name} is damaged ({e})") from e
    if not isinstance(snapshot, Snapshot) or snapshot.format != FORMAT:
        raise CheckpointError(f"checkpoint {path.name} should have format {FORMAT}, written by another version")
    return snapshot
