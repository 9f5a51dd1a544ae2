"""What commands share: their common options, logging, and how clients are drawn as text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from clusterfl.config import Config

ConfigFile = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Without it: the demo scenario.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. local.lr=0.05.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write (default: below runs/).")]
Force = Annotated[bool, typer.Option("--force", help="Write over another run's folder.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Folder of datasets (or set CLUSTERFL_DATA).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Report = Annotated[bool, typer.Option("--report", help="Also write report.html, a page to look at.")]
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


def check_report() -> None:
    """Before a long run, not after it: what pages are made with should be there."""
    from clusterfl.report.page import environment

    environment()


def draw(folder: Path) -> Path:
    """Writes the report of a run or a comparison into its folder."""
    from clusterfl.report.page import write_report

    return write_report(folder)


def say_report(drawn: Path | None, folder: Path) -> None:
    """Where the report is, or how to get one."""
    typer.echo(f"see `clusterfl report {folder}`" if drawn is None else f"report: {drawn}")


def privacy_lines(spent: dict[str, Any] | None) -> list[str]:
    """What was spent, what that is given, and what it does not cover."""
    if spent is None:
        return []
    given = f", given {', '.join(spent['given'])}" if spent["given"] else ""
    lines = [f"epsilon {spent['epsilon']:.3g} (delta {spent['delta']:g}) for a {spent['unit']}'s data{given}"]
    if spent["uncovered"]:
        lines.append(f"epsilon does not cover {', '.join(spent['uncovered'])}")
    return lines


def picture(assignments: dict[str, int], truth: dict[str, int | None], limit: int = 100) -> list[str]:
    """Which client sits in which cluster, by name; letters are true clusters, where they are known."""
    homes: dict[int, dict[int | None, list[str]]] = {}
    for name, cluster in assignments.items():
        homes.setdefault(cluster, {}).setdefault(truth.get(name), []).append(name)
    known = any(true is not None for groups in homes.values() for true in groups)
    lines = ["clients by cluster; a letter stands for their true one"] if known else ["clients by cluster"]
    for cluster, groups in sorted(homes.items()):
        parts = []
        for true, names in sorted(groups.items(), key=lambda group: group[0] or 0):
            if true is None:
                parts.append(", ".join(names[:limit]) + (f", … ({len(names)})" if len(names) > limit else ""))
            elif len(assignments) <= limit:
                parts.append(f"{letter(true)}: {', '.join(names)}")
            else:
                parts.append(f"{len(names)} of {letter(true)}")
        lines.append(f"cluster {cluster}: {'; '.join(parts)}")
    return lines


def letter(k: int) -> str:
    """a, b, …, z, then numbers."""
    return chr(ord("a") + k) if k < 26 else f"[{k}]"


def default_out(config: Config) -> Path:
    source = "".join(c if c.isalnum() or c in "-_+" else "_" for c in config.data.source)
    return Path("runs") / f"{config.method.name}-{source}-seed{config.seed}"
