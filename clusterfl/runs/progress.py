"""Where a run stands: a live line on a terminal, plain lines elsewhere, on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from clusterfl.loop import Callback, Moment
from clusterfl.runs.results import round_row


class Display(Protocol):
    """Is told about each round; ``row`` is its line of rounds.jsonl."""

    def start(self, label: str, rounds: int) -> None: ...

    def update(self, row: dict[str, Any]) -> None: ...


class Silent:
    def start(self, label: str, rounds: int) -> None:
        pass

    def update(self, row: dict[str, Any]) -> None:
        pass


class Lines:
    """One plain line per measured round."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, label: str, rounds: int) -> None:
        self.label, self.rounds, self.began = label, rounds, time.monotonic()

    def update(self, row: dict[str, Any]) -> None:
        if row["accuracy_mean"] is None:
            return
        done, spent = row["round"], time.monotonic() - self.began
        left = timedelta(seconds=round(spent / done * (self.rounds - done))) if done else "?"
        line = f"{self.label}  round {done}/{self.rounds}  {figures(row)}  {left} left"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


class Live:
    """A bar that stays in place."""

    def __init__(self, progress: Bar) -> None:
        self.progress = progress
        self.task = progress.add_task("", total=None, round="", figures="")
        self.figures = ""

    def start(self, label: str, rounds: int) -> None:
        self.figures = ""
        self.progress.reset(self.task, description=label, total=rounds, round=f"0/{rounds}", figures="")
        self.rounds = rounds

    def update(self, row: dict[str, Any]) -> None:
        self.figures = figures(row) if row["accuracy_mean"] is not None else self.figures
        at = f"{row['round']}/{self.rounds}"
        self.progress.update(self.task, completed=row["round"], round=at, figures=self.figures)


@contextmanager
def display(quiet: bool = False) -> Iterator[Display]:
    """The display that fits where standard error goes."""
    console = Console(stderr=True)
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(console)
    else:
        bar = (BarColumn(bar_width=20),) if console.width >= 110 else ()
        columns = (
            TextColumn("{task.description}"),
            TextColumn("round {task.fields[round]}"),
            *bar,
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        with Bar(*columns, console=console, transient=True) as progress:
            yield Live(progress)


class Progress(Callback):
    """Tells a display how a run goes on."""

    def __init__(self, display: Display, label: str) -> None:
        self.display, self.label = display, label

    def on_start(self, moment: Moment) -> None:
        self.display.start(self.label, moment.schedule.rounds)
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        self.display.update(round_row(moment.record, moment.population))


def figures(row: dict[str, Any]) -> str:
    ari = "" if row["ari"] is None else f"ARI {row['ari']:.2f}  "
    return (
        f"accuracy {row['accuracy_mean']:.3f}  {ari}clusters {row['clusters']}  "
        f"{size(row['bytes_up'] + row['bytes_down'])}"
    )


def size(n: float) -> str:
    """Bytes in words: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
