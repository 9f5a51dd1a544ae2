"""The scaling curve: seconds per round and peak memory by the number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw_scaling(points: Sequence[dict[str, Any]], path: Path) -> None:
    """``points`` as `clusterfl bench --workloads scale --json` prints them."""
    from matplotlib.figure import Figure

    clients = [p["clients"] for p in points]
    figure = Figure(figsize=(8.0, 3.2))
    panels = (
        ("ms a round, all clients evaluated", [(p["seconds"] + p["evaluation_seconds"]) * 1e3 for p in points]),
        ("peak memory, MB", [p["peak_mb"] for p in points]),
    )
    for place, (name, values) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, 2, place)
        axes.plot(clients, values, marker="o")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.25 * max(values))
        axes.set_xlabel("clients, 100 of them sampled each round")
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
