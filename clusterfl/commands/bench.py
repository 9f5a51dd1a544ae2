"""``clusterfl bench``: how fast it is here, beside a plain PyTorch loop and the practical limit."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import DataRoot, Json, Quiet, Verbose, say_json, set_logging
from clusterfl.errors import ConfigError, suggestion


def register(app: typer.Typer) -> None:
    app.command()(bench)
    app.command("bench-scale", hidden=True)(bench_scale)
    app.command("bench-clustering", hidden=True)(bench_clustering)


def bench(
    workloads: Annotated[str, typer.Option("--workloads", help="Comma-separated; 'all' or names.")] = "all",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed turns; the median is shown.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two turns of mclr, mlp, lenet, ifca; under 3 minutes.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Time pfl, fluke, Flower and CFLA too, those that are installed.")
    ] = False,
    plans: Annotated[
        bool,
        typer.Option("--plans", help="Time all plans that 'auto' chooses from: how near is its choice to the best?"),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the curve of the workload 'scale'.")
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Time federated rounds beside a plain PyTorch loop, turn by turn.

    Seconds are medians of one round of training and aggregation. "loop" is that loop with all threads,
    "limit" the same loop in one process per core. 'scale' has up to 100,000 clients, 'clustering' the server's
    clustering of 10,000 models.

    \b
    Examples:
      clusterfl bench --quick
      clusterfl bench --workloads mclr,lenet --repeats 7 --json
      clusterfl bench --workloads mclr,mlp,lenet --peers
      clusterfl bench --workloads mlp,lenet --plans
      clusterfl bench --workloads clustering
    """
    set_logging(verbose, quiet)
    from clusterfl.bench.measure import bench as measure
    from clusterfl.bench.measure import bench_plans
    from clusterfl.bench.workloads import WORKLOADS
    from clusterfl.report.scaling import draw_scaling

    known = [*WORKLOADS, "scale", "clustering"]
    names = ["mclr", "mlp", "lenet", "ifca"] if quick else known if workloads == "all" else workloads.split(",")
    for name in names:
        if name not in known:
            raise ConfigError(f"workload {name!r} is not known{suggestion(name, known)}")
    found: dict[str, Any] = {}
    for name in names:
        if name == "scale":
            found[name] = {"points": list(scaling())}
            if plot is not None:
                draw_scaling(found[name]["points"], plot)
        elif name == "clustering":
            found[name] = {"ways": list(clusterings())}
        elif plans:
            found[name] = bench_plans(WORKLOADS[name], data_root, 2 if quick else repeats)
        else:
            result = measure(WORKLOADS[name], data_root, 2 if quick else repeats, peers=peers)
            found[name] = result.json()
        if not quiet and not json:
            for line in lines(name, found[name]):
                typer.echo(line)
    if json:
        say_json({"workloads": found})


def lines(name: str, got: dict[str, Any]) -> list[str]:
    if name == "scale":
        return [
            f"scale {p['clients']:>6} clients, 100 sampled: {p['seconds'] * 1e3:7.1f} ms a round, "
            f"{p['evaluation_seconds'] * 1e3:7.1f} ms to evaluate all (the first time "
            f"{p['first_evaluation_seconds'] * 1e3:.0f}), peak {p['peak_mb']:.0f} MB"
            for p in got["points"]
        ]
    if name == "clustering":
        return [
            f"clustering {w['models']:,} models of {w['parameters']:,} parameters by {w['way']:12s} "
            f"{w['cpu_seconds']:6.1f} s of processor time ({w['seconds']:.1f} s), {w['beside_mb']:.0f} MB beside the "
            f"models' {w['models_mb']:.0f}, ARI {w['ari']:.3f}"
            for w in got["ways"]
        ]
    if "plans" in got:
        return [
            *(f"{name:13s} {took:7.3f} s a round   {plan}" for plan, took in got["plans"].items()),
            f"{'':13s} auto: {got['auto']}; {got['times_best']:.2f}x the best; {got['data']}",
        ]
    times = got["times_training"]
    more = "" if times is None else f"; {times:.2f}x its training alone ({got['training_seconds']:.2f} s)"
    ratios = (
        f"no ratio: the machine was busy (others' load {got['load']:.1f} per core at the start, turns "
        f"{got['spread']:.1f} times apart; loop {got['loop_seconds']:.2f} s, limit {got['limit_seconds']:.2f} s)"
        if got["speedup_vs_loop"] is None
        else f"{got['speedup_vs_loop']:5.2f}x the loop ({got['loop_seconds']:.2f} s)   "
        f"{got['speedup_vs_limit']:5.2f}x the limit ({got['limit_seconds']:.2f} s)"
    )
    return [
        f"{name:13s} {got['seconds']:7.3f} s a round   {ratios}   "
        f"evaluation {got['evaluation_seconds']:.3f} s   peak {got['peak_mb']:.0f} MB",
        f"{'':13s} {got['engine']}; {got['data']}{more}",
        *(
            f"{'':13s} {peer}: {took:.3f} s, {took / got['seconds']:.2f}x as long"
            for peer, took in got.get("peers", {}).items()
        ),
        *(
            f"{'':13s} {peer}: not installed (pip install {package})"
            for peer, package in got.get("peers_not_installed", {}).items()
        ),
    ]


def scaling() -> Iterator[dict[str, Any]]:
    for clients in (100, 1000, 10_000, 100_000):
        yield alone("bench-scale", str(clients))


def clusterings() -> Iterator[dict[str, Any]]:
    from clusterfl.bench.clustering import WAYS

    for way in WAYS:
        yield alone("bench-clustering", way)


def alone(*arguments: str) -> dict[str, Any]:
    """A point in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "clusterfl", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = jsonlib.loads(done.stdout)
    return found


def bench_scale(clients: int, sampled: int = 100, rounds: int = 100) -> None:
    """One point of the scaling curve, as JSON."""
    from clusterfl.bench.scale import scale

    say_json(scale(clients, sampled, rounds).json())


def bench_clustering(way: str, models: int = 10_000, apart: float = 0.3) -> None:
    """One clustering of many models, as JSON."""
    from clusterfl.bench.clustering import clustering

    say_json(clustering(way, models, apart=apart).json())
