"""The ledger of a private run, on the disk before what it pays for is released.

A run that is taken up again repeats its last rounds with the same keys and releases the same bits: that is no second
release, and the call is charged once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfl import keys
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import wrapper_of
from clusterfl.engines.wrappers.charges import Charge, Ledger
from clusterfl.engines.wrappers.privacy import Private
from clusterfl.errors import DataError
from clusterfl.keys import Key
from clusterfl.runs.files import append, sync_folder, write_whole


def charge_to(engine: BaseEngine, path: Path, key: Key) -> Key:
    """Charges what an engine's clients release from now on to a ledger that there may be already. The key that comes
    back is fresh each time, of each ledger: noise that two releases share could be subtracted."""
    private = wrapper_of(engine, Private)
    if private is None:
        return key
    private.ledger = LedgerFile.open(path)
    return keys.fold_in(key, path.name, "after", len(private.ledger.charged))


@dataclass
class LedgerFile(Ledger):
    """``privacy.log`` of a run's folder: one checksummed line a charge."""

    path: Path = Path("privacy.log")

    @staticmethod
    def open(path: Path, run: str | None = None) -> LedgerFile:
        """The ledger of a run (named by a digest of its config and data); another run's is begun anew. Without a name
        it is gone on with, whoever's it is."""
        ledger = LedgerFile(path=path)
        lines = _lines(path)
        whose = _read(path, lines[0], 1) if lines else None
        if whose is None or (run is not None and whose != {"run": run}):
            write_whole(path, _line({"run": run}))
            return ledger
        for number, line in enumerate(lines[1:-1], start=2):
            Ledger.charge(ledger, Charge(**_read(path, line, number)))
        if lines[-1]:  # cut off while it was written: nothing was released for it
            write_whole(path, b"\n".join(lines[:-1]) + b"\n")
        return ledger

    @staticmethod
    def beside(path: Path, run: str) -> LedgerFile:
        """The ledger of a run, which until it is moved leaves that of another run at this place as it is."""
        lines = _lines(path)
        another = bool(lines) and _read(path, lines[0], 1) != {"run": run}
        return LedgerFile.open(path.with_name(f".{path.name}.new") if another else path, run)

    def move(self, path: Path) -> None:
        """Takes another ledger's place, if it is not there already."""
        if self.path != path:
            self.path.replace(path)
            sync_folder(path.parent)
            self.path = path

    def charge(self, charge: Charge) -> None:
        append(self.path, _line(dataclasses.asdict(charge)))
        super().charge(charge)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n") if path.exists() else []


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest()[:16].encode() + b" " + text + b"\n"


def _read(path: Path, line: bytes, number: int) -> dict[str, Any]:
    digest, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest()[:16].encode() != digest:
        raise DataError(
            f"{path} is damaged in line {number}, so that nobody knows what was spent; start in another folder"
        )
    entry: dict[str, Any] = json.loads(text)
    return entry
