"""The folder of a run: whose it is, who may use it, and what of it survives another run."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clusterfl.config import Config
from clusterfl.config.tables import read
from clusterfl.engines.config import EngineConfig
from clusterfl.errors import ClusterflError, ConfigError
from clusterfl.runs.files import write_whole

CONFIG, SUMMARY = "config.toml", "summary.json"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Only one run at a time may own a folder."""
    check_folder(folder)
    lock = FileLock(folder / ".lock")
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ClusterflError(f"out={folder} is in use by another run; wait for it or choose another") from None
    except OSError as e:
        raise _unusable(folder, e) from e
    try:
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # what somebody else uses or removed by now is theirs
            if [path.name for path in folder.iterdir()] == [".lock"]:  # nothing came of it
                (folder / ".lock").unlink()
                for path in new or [folder]:
                    path.rmdir()


def check_folder(folder: Path) -> None:
    """What is there can be a run's folder, or nothing is there yet."""
    try:
        file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    except OSError as e:
        raise _unusable(folder, e) from e
    if file is not None:
        below = "" if file == folder else f", but {file}"
        raise ConfigError(f"out={folder} should be a folder{below or ', but'} is a file")


def _unusable(folder: Path, error: OSError) -> ConfigError:
    name = str(folder)
    short = name if len(name) <= 120 else f"{name[:60]}…{name[-40:]}"
    return ConfigError(f"out={short} should be a folder that can be written, but: {error.strerror}")


def config_of(folder: Path) -> str | None:
    """The text of the config in a folder; None where there is none."""
    path = folder / CONFIG
    if not path.exists():
        return None
    try:
        return path.read_bytes().decode("utf-8", errors="replace")  # another run's, if it is no text
    except OSError as e:
        raise ConfigError(f"{path} should be a file that can be read, but: {e.strerror}") from e


def check_free(folder: Path, config: Config, *, force: bool = False, resume: bool = False) -> None:
    """A folder that holds another run is not written over; the same run may be run again, or taken up."""
    check_folder(folder)
    there = config_of(folder)
    if there is not None and not force and not same_run(there, config.toml(), resume=resume):
        raise ConfigError(f"out={folder} holds another run and should be a new folder, or add --force (force=True)")


def same_run(a: str, b: str, *, resume: bool = False) -> bool:
    """Whether two configs learn the same; ``resume``: whether one may go on where the other ended."""
    return bool(_learnt(a, resume) == _learnt(b, resume))


def _learnt(config: str, resume: bool) -> Any:
    """What is learnt: all but the engine, which "auto" may choose anew."""
    try:
        table = tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        return None
    clip = table.get("engine", {}).get("clip_updates")  # of the engine's keys the one that changes what is learnt
    data = {k: v for k, v in table.get("data", {}).items() if k != "root"}  # where it lies; its digest is checked
    free = ("rounds", "checkpoint", "methods") if resume else ()
    return {k: v for k, v in {**table, "engine": clip, "data": data}.items() if k not in free}


def can_resume(folder: Path, config: Config) -> bool:
    """Whether a folder holds a run that this config may go on with."""
    there, asked = config_of(folder), config.model_copy(update={"data": config.data.resolved()})
    return there is not None and same_run(there, asked.toml(), resume=True)


def clear(folder: Path) -> None:
    """Forgets an earlier run, in an order in which a kill leaves nothing that looks like a run's."""
    (folder / SUMMARY).unlink(missing_ok=True)
    checkpoints = folder / "checkpoints"
    for path in [*checkpoints.glob("round-*.ckpt"), checkpoints / "records.log", *checkpoints.glob(".*.tmp")]:
        path.unlink(missing_ok=True)
    for name in ("rounds.jsonl", "data.json", "details.json", "pseudo.safetensors", "report.html"):
        (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def withdrawn_unless_begun(folder: Path) -> Iterator[None]:
    """A new run that turns out to be impossible leaves nothing behind; one that is killed can be resumed."""
    new = config_of(folder) is None
    try:
        yield
    except ClusterflError:
        if new and not any((folder / "checkpoints").glob("round-*.ckpt")):
            clear(folder)
            (folder / CONFIG).unlink(missing_ok=True)
        raise


def write_config(folder: Path, config: Config) -> None:
    write_whole(folder / CONFIG, config.toml().encode())


def taken_up(folder: Path, config: Config) -> Config:
    """The config of a run that goes on: with the engine that it had, where the caller leaves that open."""
    there = config_of(folder)
    if there is None or config.engine.name != "auto":
        return config
    table = tomllib.loads(there).get("engine", {})
    return config.model_copy(update={"engine": read(EngineConfig, table, "engine")})


def summary_of(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None where there is none, or it is damaged: the end is run again."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return summary if isinstance(summary["rounds"], int) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
