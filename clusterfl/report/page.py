"""From run folders to one HTML file that needs nothing else.

>>> write_report("runs/mine")                                     # runs/mine/report.html
>>> write_report("runs/table", out="table.html")                  # a comparison
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from clusterfl.errors import ClusterflError, DataError
from clusterfl.report.one_run import page_of
from clusterfl.report.parts import Page
from clusterfl.report.runs import folders_of, read_run
from clusterfl.report.several import page_of_several
from clusterfl.report.svg import Html
from clusterfl.runs.files import write_whole

REPORT = "report.html"


def write_report(*runs: str | Path, out: str | Path | None = None) -> Path:
    """Writes the page of a run, or of several (folders of runs or of comparisons); gives its path.

    Without ``out`` it is ``report.html`` in the first folder.
    """
    if not runs:
        raise ClusterflError("runs=() should name at least one folder")
    path = Path(out) if out is not None else Path(runs[0]) / REPORT
    folders = folders_of(runs)
    found = []
    for folder in folders:
        with whole(folder):
            found.append(read_run(folder))
    with whole(*folders):
        html = render(page_of(found[0]) if len(found) == 1 else page_of_several(found))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ClusterflError(f"out={path} should be in a folder that can be written, but: {e.strerror}") from e
    write_whole(path, html.encode())
    return path


@contextmanager
def whole(*folders: Path) -> Iterator[None]:
    """What fails within this, fails because files of these runs are not as a run leaves them."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as e:
        which = str(folders[0]) if len(folders) == 1 else f"one of {folders[0]}, …"
        why = f"{type(e).__name__}: {str(e).partition(chr(10))[0][:200]}"
        raise DataError(f"{which} should hold a run's files, but one is missing or damaged ({why})") from e


def render(page: Page) -> str:
    """One HTML document: style, script, pictures and data inside."""
    assets = resources.files("clusterfl.report") / "assets"
    style, script, template = (
        (assets / name).read_text(encoding="utf-8") for name in ("style.css", "script.js", "page.html")
    )
    made: str = environment().from_string(template).render(page=page, style=Html(style), script=Html(script))
    return made


def environment() -> Any:
    """What templates are filled in by; all that is not markup is escaped."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise ClusterflError("jinja2 should be installed for reports: pip install 'clusterfl[report]'") from None
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
