"""``clusterfl report``: a run, or several, as one page to look at and hand on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterfl.commands.common import Verbose, set_logging


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs or of comparisons.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Where to write (default: RUN/report.html).")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Draw a run, or compare several, in one HTML file that needs nothing else.

    \b
    Examples:
      clusterfl report runs/mine
      clusterfl report runs/compare-demo
      clusterfl report runs/a runs/b runs/c --out page.html
    """
    set_logging(verbose)
    from clusterfl.report.page import write_report

    typer.echo(f"written to {write_report(*runs, out=out)}")
