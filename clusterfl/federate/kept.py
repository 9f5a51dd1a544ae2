"""What a node keeps, on its own disk: each file is whole and checksummed or is not there.

``kept/RUN/epoch-000003-ATTEMPT.kept`` is what the client kept in round 3 (0: the start). A run that is resumed goes
back to its checkpoint's round: what was kept in later rounds of the broken attempt is then not read, and is removed.

``serving/`` holds the model that the node's own applications use, as safetensors; ``current.json`` names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from clusterfl.engines import codec
from clusterfl.engines.flower.messages import Place
from clusterfl.errors import ClusterflError, DataError
from clusterfl.method import State
from clusterfl.runs.files import read_bounded, write_whole
from clusterfl.tree import Tree

log = logging.getLogger(__name__)

LARGEST = 1 << 34  # bytes
T = TypeVar("T", bound=State)


@dataclass(frozen=True)
class Kept(State):
    """What a client kept in one round of one attempt."""

    token: int  # of the request
    before: Tree
    state: Tree


@dataclass(frozen=True)
class Disk:
    """A node's folder."""

    folder: Path

    def kept(self, place: Place, token: int | None = None) -> Tree:
        """What the client kept before the request: in this round, else in the last one before it."""
        for path in reversed(self._files(place.run)):
            if not place.holds(*_of(path)):
                continue
            found = _read(path, Kept)
            if found.token in place.void:  # for good: the next request need not say it again
                found = replace(found, state=found.before)
                write_whole(path, codec.pack(found))
            return found.before if found.token == token else found.state
        return {}

    def keep(self, place: Place, token: int, before: Tree, state: Tree) -> None:
        folder = self._folder(place.run)
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._files(place.run):
            if not place.holds(*_of(path)):  # of an attempt that was given up
                path.unlink()
        name = f"epoch-{place.epoch:06d}-{_word('attempt', place.attempt)}.kept"
        write_whole(folder / name, codec.pack(Kept(token, before, state)))
        for path in [p for p in self._files(place.run) if _of(p)[1] <= place.oldest][:-1]:
            path.unlink()

    def serving(self) -> tuple[int, Tree] | None:
        """The version in service and its model: the current one, or the last good one where that is damaged."""
        for entry in self._served():
            path = self.folder / "serving" / Path(entry["file"]).name
            try:
                data = path.read_bytes()
                if hashlib.sha256(data).hexdigest() == entry["sha256"]:
                    return int(entry["version"]), load_tensors(data)
            except OSError:
                pass
            log.warning("%s is damaged; the version before it is used", path)
        return None

    def serve(self, cluster: int, version: int, theta: Tree) -> None:
        """From now on this version is served; the one before it stays beside it."""
        folder = self.folder / "serving"
        folder.mkdir(parents=True, exist_ok=True)
        data = save_tensors({n: t.contiguous() for n, t in theta.items()})
        name = f"cluster-{cluster}-version-{version}.safetensors"
        write_whole(folder / name, data)
        now = {"cluster": cluster, "version": version, "file": name, "sha256": hashlib.sha256(data).hexdigest()}
        stay = [now, *(entry for entry in self._served() if entry["file"] != name)][:2]
        write_whole(folder / "current.json", (json.dumps(stay, indent=2) + "\n").encode())
        for path in folder.glob("*.safetensors"):
            if path.name not in {entry["file"] for entry in stay}:
                path.unlink()

    def _served(self) -> list[dict[str, Any]]:
        """What is in service, and what was before it."""
        try:
            found: list[dict[str, Any]] = json.loads((self.folder / "serving" / "current.json").read_bytes())
            return found
        except (OSError, ValueError):
            return []

    def _folder(self, run: str) -> Path:
        return self.folder / "kept" / _word("run", run)

    def _files(self, run: str) -> list[Path]:
        return sorted(self._folder(run).glob("epoch-*-*.kept"))


def _word(what: str, given: str) -> str:
    """A part of a file's name that the server chose."""
    if not (given.isascii() and given.isalnum()):
        raise ClusterflError(f"{what}={given!r} should be letters and digits")
    return given


def _of(path: Path) -> tuple[str, int]:
    """The attempt and the round of a file."""
    _, epoch, attempt = path.stem.split("-")
    return attempt, int(epoch)


def _read(path: Path, kind: type[T]) -> T:
    try:
        found = codec.unpack(read_bounded(path, LARGEST))
    except (ValueError, OSError) as e:
        raise DataError(f"{path} is damaged ({e}); remove it to go on without what was kept") from e
    if not isinstance(found, kind):
        raise DataError(f"{path} should hold what a node kept, but holds something else")
    return found
