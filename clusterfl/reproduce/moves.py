"""How clusters came about in the runs behind a table: where they started, who moved, where they ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterfl.config.tables import Table
from clusterfl.reproduce.compare import Comparison


def courses(c: Comparison) -> Iterator[str]:
    """A line for each row and setting whose results keep the course of their clusters."""
    groups: dict[tuple[str, str], list[Table]] = {}
    for r in c.results:
        if r.get("ari_curve"):
            groups.setdefault((r["row"], r["setting"]), []).append(r)
    alone = len(c.experiment.settings) == 1
    for (row, setting), runs in groups.items():
        yield f"{row}{'' if alone else f', {setting}'}: {course(runs)}"


def course(runs: Sequence[Table]) -> str:
    """One number for each run, in the order of their seeds."""
    runs = sorted(runs, key=lambda r: r["seed"])
    first, last = ([_figure(r["ari_curve"][end][1]) for r in runs] for end in (0, -1))
    moves = [r.get("moved") or [] for r in runs]  # (round, share of clients)
    said = f"ARI {_list(first)} at the start, {_list(last)} at the end; "
    if not any(moves):
        return said + "nobody ever moved"
    rounds = _list(str(len(m)) for m in moves)
    ended = _list(str(int(m[-1][0])) if m else "–" for m in moves)
    most = _list(f"{100 * max(share for _, share in m):.0f} %" if m else "–" for m in moves)
    return said + f"rounds in which clients moved: {rounds}; the last: {ended}; at once at most {most} of them"


def _figure(ari: float) -> str:
    return f"{ari:.2f}".replace("-0.00", "0.00")


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
