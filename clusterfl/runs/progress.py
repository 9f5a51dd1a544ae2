"""Where a run stands: a live line on a terminal, plain lines elsewhere, on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live as InPlace
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from clusterfl.callback import Callback, Moment
from clusterfl.record import Record
from clusterfl.runs.results import round_row
from clusterfl.runs.terminal import chart, clusters
from clusterfl.scores import label


class Display(Protocol):
    """Is told about each round; ``row`` is its line of rounds.jsonl, and the name of its main ``metric``."""

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
        if main_of(row) is None:
            return
        done, spent = row["round"], time.monotonic() - self.began
        left = timedelta(seconds=round(spent / done * (self.rounds - done))) if done else "?"
        line = f"{self.label}  round {done}/{self.rounds}  {figures(row)}  {left} left"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


class Live:
    """A bar that stays in place, with the mean so far as a curve and a bar for each cluster below it."""

    def __init__(self, progress: Bar, *, pictures: bool = True) -> None:
        self.progress, self.pictures = progress, pictures
        self.task = progress.add_task("preparing", total=None, round="-", figures="")
        self.figures, self.means = "", list[float]()
        self.by_cluster: dict[int, tuple[float, int]] = {}
        self.metric = "accuracy"

    def start(self, label: str, rounds: int) -> None:
        self.figures, self.means, self.by_cluster = "", [], {}
        self.progress.reset(self.task, description=label, total=rounds, round=f"0/{rounds}", figures="")
        self.rounds = rounds

    def update(self, row: dict[str, Any]) -> None:
        main = main_of(row)
        if main is not None:
            self.figures, self.metric = figures(row), row.get("metric", "accuracy")
            self.means.append(main)
            self.by_cluster = row.get("by_cluster", {})
        at = f"{row['round']}/{self.rounds}"
        self.progress.update(self.task, completed=row["round"], round=at, figures=self.figures)

    def picture(self) -> RenderableType:
        if not self.pictures or len(self.means) < 2:
            return self.progress
        below = Table.grid(padding=(0, 4))
        below.add_row(chart(self.means, f"mean {label(self.metric)}"), clusters(self.by_cluster))
        return Group(self.progress, "", below)


SMALLEST = (90, 16)  # columns and rows of a terminal that has room for pictures


@contextmanager
def display(quiet: bool = False) -> Iterator[Display]:
    """The display that fits where standard error goes."""
    console = Console(stderr=True)
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            TextColumn("round {task.fields[round]}"),
            BarColumn(bar_width=20 if console.width >= 110 else 10),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        room = console.width >= SMALLEST[0] and console.height >= SMALLEST[1]
        shown = Live(Bar(*columns, console=console), pictures=room)
        with InPlace(get_renderable=shown.picture, console=console, transient=True, refresh_per_second=4):
            yield shown


class Progress(Callback):
    """Tells a display how a run goes on."""

    def __init__(self, display: Display, label: str) -> None:
        self.display, self.label = display, label

    def on_start(self, moment: Moment) -> None:
        self.display.start(self.label, moment.schedule.rounds)
        self.on_round(moment)

    def on_round(self, moment: Moment) -> None:
        row = round_row(moment.record, moment.population, moment.metric)
        clusters = by_cluster(moment.record, moment.metric.name)
        self.display.update({**row, "metric": moment.metric.name, "by_cluster": clusters})


def by_cluster(record: Record, metric: str = "accuracy") -> dict[int, tuple[float, int]]:
    """The mean main metric of each cluster's clients, as far as it was measured, and how many they are."""
    values = record.score(metric)
    known = ~values.isnan()
    sizes, measured = record.assign.bincount(), record.assign[known].bincount(minlength=int(record.assign.max()) + 1)
    totals = record.assign[known].bincount(values[known], minlength=len(sizes))
    means = (totals / measured).tolist()  # NaN where nobody was measured
    return {k: (means[k], size) for k, size in enumerate(sizes.tolist()) if size}


def main_of(row: dict[str, Any]) -> float | None:
    """The main metric of a round; None where it was not measured."""
    mean: float | None = row[f"{row.get('metric', 'accuracy')}_mean"]
    return mean


def figures(row: dict[str, Any]) -> str:
    ari = "" if row["ari"] is None else f"ARI {row['ari']:.2f}  "
    return (
        f"{label(row.get('metric', 'accuracy'))} {main_of(row):.3f}  {ari}clusters {row['clusters']}  "
        f"{size(row['bytes_up'] + row['bytes_down'])}"
    )


def size(n: float) -> str:
    """Bytes in words: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
