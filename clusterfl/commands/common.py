"""What commands share: their common options, and a run from config to summary."""

from __future__ import annotations

import hashlib
import json
import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterfl.errors import ClusterflError, ConfigError, NoReplies

if TYPE_CHECKING:
    from clusterfl.config import Built, Config
    from clusterfl.data.population import Population
    from clusterfl.loop import Outcome
    from clusterfl.progress import Display

ConfigFile = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Without it: the demo scenario.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. local.lr=0.05.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write (default: below runs/).")]
Force = Annotated[bool, typer.Option("--force", help="Write over another run's folder.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Folder of datasets (or set CLUSTERFL_DATA).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="More on standard error; -vv: all of it.")]


class Standard(logging.Handler):
    """Log lines on standard error, above a live display if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


def set_logging(verbose: int, quiet: bool = False) -> None:
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", handlers=[Standard()], force=True)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def say_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def check_out(folder: Path, config: str, force: bool) -> None:
    """A folder that holds another run is not written over; the same run may be run again."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} should be a folder, but is a file")
    there = folder / "config.toml"
    if there.exists() and not force and not same_run(there.read_text(encoding="utf-8"), config):
        raise ConfigError(f"--out {folder} holds another run and should be a new folder, or add --force")


def same_run(a: str, b: str) -> bool:
    """Whether two configs learn the same."""
    return bool(_what(a) == _what(b))


def _what(config: str) -> Any:
    """What is run: all but the engine, which "auto" may choose anew."""
    try:
        table = tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        return None
    clip = table.get("engine", {}).get("clip_updates")  # of the engine's keys the one that changes what is learnt
    return [line for line in config.splitlines() if line.startswith("#")], {**table, "engine": clip}


def simulate(built: Built, display: Display, label: str) -> Outcome:
    """The whole run, shown as it goes; nothing is written."""
    return _simulate(built, display, label, lambda: False, lambda: None)


def simulate_into(folder: Path, built: Built, display: Display, label: str, *, resume: bool) -> Outcome:
    """The whole run, checkpointed into its folder as it goes; ``resume`` goes on where an earlier one ended."""
    from clusterfl import __version__
    from clusterfl.checkpoint import Checkpoints
    from clusterfl.engines.flaky import layer
    from clusterfl.engines.privacy import Ledger, Private
    from clusterfl.results import RoundsFile, write

    sim, config = built.simulation, built.config
    saved = Checkpoints(
        folder, config.checkpoint, config=config.digest(), data=sim.population.digest, version=__version__
    )
    rounds = RoundsFile(folder, sim.population)
    private = layer(sim.engine, Private)
    if private is not None:
        name = hashlib.sha256(f"{config.digest()} {sim.population.digest}".encode()).hexdigest()
        private.ledger = Ledger.open(folder / "privacy.log", name)

    def restore() -> bool:
        if not (resume and saved.restore(sim)):
            return False
        write(folder / "config.toml", config.toml().encode())
        rounds.restart(sim.records)
        return True

    def save() -> None:
        if sim.round == 0:  # the start has worked: only now does the folder become this run's
            # in this order, so that a kill in between leaves nothing of an earlier run that looks like this one's
            (folder / "summary.json").unlink(missing_ok=True)
            saved.clear()
            write(folder / "config.toml", config.toml().encode())
            rounds.restart([])
        rounds.add(sim.records[-1])
        saved.save(sim)

    return _simulate(built, display, label, restore, save)


def _simulate(
    built: Built, display: Display, label: str, restore: Callable[[], bool], save: Callable[[], None]
) -> Outcome:
    from clusterfl.results import round_row

    simulation = built.simulation
    display.start(label, simulation.schedule.rounds)
    with simulation.engine:
        if not restore():
            try:
                simulation.start()
            except ValueError as e:  # a start that this config makes impossible
                raise ConfigError(f"method: {e}") from e
            except NoReplies as e:
                raise ClusterflError(f"the run should start with at least one sound reply, but {e}") from e
            save()
        display.update(round_row(simulation.records[-1], simulation.population))
        while simulation.round < simulation.schedule.rounds:
            record = simulation.step()
            save()
            display.update(round_row(record, simulation.population))
        return simulation.finish()


def picture(summary: dict[str, Any], population: Population, limit: int = 100) -> list[str]:
    """Which client sits in which cluster; a letter after each client's number is its true cluster."""
    truth = population.truth
    homes: dict[int, list[int]] = {}
    for client, cluster in summary["assignments"].items():
        homes.setdefault(cluster, []).append(int(client))
    lines = []
    for cluster, members in sorted(homes.items()):
        if truth is None:
            who = " ".join(str(i) for i in members[:limit]) + (" …" if len(members) > limit else "")
        elif population.clients <= limit:
            ordered = sorted(members, key=lambda i: (int(truth[i]), i))
            who = " ".join(f"{i}{letter(int(truth[i]))}" for i in ordered)
        else:
            counts: dict[str, int] = {}
            for i in members:
                counts[letter(int(truth[i]))] = counts.get(letter(int(truth[i])), 0) + 1
            who = "  ".join(f"{n} of {name}" for name, n in sorted(counts.items()))
        lines.append(f"cluster {cluster}: {who}")
    return lines


def letter(k: int) -> str:
    """a, b, …, z, then numbers."""
    return chr(ord("a") + k) if k < 26 else f"[{k}]"


def default_out(config: Config) -> Path:
    source = "".join(c if c.isalnum() or c in "-_+" else "_" for c in config.data.source)
    return Path("runs") / f"{config.method.name}-{source}-seed{config.seed}"
