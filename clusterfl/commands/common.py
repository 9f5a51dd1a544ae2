"""What commands share: their common options, logging, and how clients are drawn as text."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
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
    """Log lines to standard error; and a word there, unless nothing is to be said, before PyTorch is loaded."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", handlers=[Standard()], force=True)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    if not quiet and "torch" not in sys.modules:
        typer.echo(f"{click.get_current_context().info_name}: loading PyTorch …", err=True)


@contextmanager
def resumable() -> Iterator[None]:
    """Work of many runs, each kept as it ends: an interrupt says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        words = [word for word in sys.argv[1:] if word != "--force"]  # which would begin anew
        typer.echo("interrupted; what is finished is kept", err=True)
        again = shlex.join(["clusterfl", *words])
        typer.echo(f"go on with: {again}", err=True)
        raise typer.Exit(130) from None


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
    secret = " while who is asked stays secret" if spent["sampling"] == "secret" else ""
    what = f"for a {spent['unit']}'s data{secret}{given}"
    lines = [f"epsilon {spent['epsilon']:.3g} (delta {spent['delta']:g}) {what}"]
    if spent["uncovered"]:
        lines.append(f"epsilon does not cover {', '.join(spent['uncovered'])}")
    return lines


def check_all_learnt(lost: list[str]) -> None:
    """Exit code 1 where some of several runs had no round with a sound reply: their results are those of the start."""
    if lost:
        more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""
        typer.echo(
            f"error: no round had a sound reply in {'; '.join(lost[:10])}{more}: their models are those of the start "
            "(a smaller local.lr often helps)",
            err=True,
        )
        raise typer.Exit(1)


def look_lines(spent: dict[str, Any] | None) -> list[str]:
    """The same of a look at the clients before any run."""
    more = ["a run on the same clients comes on top of that: no ledger joins the two"]
    return [] if spent is None else privacy_lines(spent) + more


def picture(assignments: dict[str, int], truth: dict[str, int | None], limit: int = 100) -> list[str]:
    """Which client sits in which cluster, by name; letters are true clusters, where they are known."""
    homes: dict[int, dict[int | None, list[str]]] = {}
    for name, cluster in assignments.items():
        shown = f'"{name}"' if "," in name else name
        homes.setdefault(cluster, {}).setdefault(truth.get(name), []).append(shown)
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
    from clusterfl.outside import is_outside

    whole = config.data.source
    name = whole.rpartition("/")[2] if is_outside(whole) else whole
    source = "".join(c if c.isalnum() or c in "-_+" else "_" for c in name)
    return Path("runs") / f"{config.method.name}-{source}-seed{config.seed}"
