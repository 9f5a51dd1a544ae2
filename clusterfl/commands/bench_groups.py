"""``clusterfl bench-groups``: how well groups are found before training, over a grid of worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import DataRoot, Json, say_json
from clusterfl.commands.compare import parse_seeds
from clusterfl.errors import ConfigError


def register(app: typer.Typer) -> None:
    app.command("bench-groups", hidden=True)(bench_groups)


def bench_groups(
    sources: Annotated[str, typer.Option("--sources", help="Comma-separated.")] = "digits,mnist,fashion_mnist",
    shifts: Annotated[
        str, typer.Option("--shifts", help="Comma-separated; none: there are no groups.")
    ] = "rotate,permute_labels,rotate+swap,none",
    alphas: Annotated[
        str, typer.Option("--alphas", help="Label skew: iid, or Dirichlet parameters per class.")
    ] = "iid,0.3,0.1",
    seeds: Annotated[str, typer.Option("--seeds", metavar="0-2")] = "0-2",
    variants: Annotated[
        str, typer.Option("--variants", help="Comma-separated, or all: without a part each.")
    ] = "whole",
    clients: Annotated[int, typer.Option("--clients", min=2)] = 32,
    samples: Annotated[int | None, typer.Option("--samples", help="Of a client; unset: 200, of digits 60.")] = None,
    epsilon: Annotated[
        str, typer.Option("--epsilon", help="Privacy of the statistics: one or several numbers; empty: none.")
    ] = "",
    unit: Annotated[str, typer.Option("--unit", help="What epsilon hides: a sample or a client.")] = "sample",
    scale: Annotated[
        str, typer.Option("--scale", help="In place of the grid: time synthetic statistics of so many clients.")
    ] = "",
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="With --epsilon: a picture of ARI against it, SVG.")
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Find groups by evidence on a grid of worlds, with the oracle's ARI beside it.

    The oracle places every client by the statistics of the true groups, itself left out: no method that sees these
    statistics can do better by more than chance.

    \b
    Examples:
      clusterfl bench-groups --sources digits
      clusterfl bench-groups --sources digits --variants all --alphas 0.1
      clusterfl bench-groups --sources digits --shifts rotate --alphas iid --epsilon 1,3,10,30
      clusterfl bench-groups --scale 10000,100000
    """
    from clusterfl.bench.evidence import VARIANTS, World, study
    from clusterfl.bench.evidence import scale as measure
    from clusterfl.cohort import one_thread
    from clusterfl.parts.describe import Describe, Unit
    from clusterfl.parts.gaussian import multiplier

    if scale:
        with one_thread():
            points = [measure(int(n)) for n in scale.split(",")]
        if json:
            say_json(points)
            return
        for point in points:
            typer.echo(scale_line(point))
        return
    chosen = list(VARIANTS) if variants == "all" else variants.split(",")
    for name in chosen:
        if name not in VARIANTS:
            raise ConfigError(f"--variants {name!r} should be one of {', '.join(VARIANTS)}")
    if unit not in Unit.__args__:  # type: ignore[attr-defined]
        raise ConfigError(f"--unit {unit!r} should be 'sample' or 'client'")
    if figure is not None and not epsilon:
        raise ConfigError(f"--figure {figure} should go with --epsilon: it shows ARI against it")
    skews = [None if a == "iid" else float(a) for a in alphas.split(",")]
    worlds = [
        World(source, shift, alpha, clients, samples=samples)
        for source in sources.split(",")
        for shift in shifts.split(",")
        for alpha in skews
    ]
    noises = [(None, 0.0)] if not epsilon else [(float(e), multiplier(float(e), 1e-5)) for e in epsilon.split(",")]
    root = None if data_root is None else str(data_root)
    found: list[dict[str, Any]] = []
    with one_thread():
        for world in worlds:
            for value, noise in noises:
                describe = Describe(noise=noise, unit=unit)  # type: ignore[arg-type]
                rows = [{**row, "epsilon": value} for row in study([world], parse_seeds(seeds), chosen, describe, root)]
                found += rows
                if not json:
                    for variant in chosen:
                        typer.echo(line([row for row in rows if row["variant"] == variant]))
    if figure is not None:
        from clusterfl.bench.epsilon import figure as drawn
        from clusterfl.runs.files import write_whole

        write_whole(figure, drawn(found).encode())
    if json:
        say_json(found)


def line(rows: list[dict[str, Any]]) -> str:
    """One world, variant and epsilon over its seeds."""
    first, n = rows[0], len(rows)
    private = "" if first["epsilon"] is None else f" epsilon {first['epsilon']:g}"
    ari, oracle, seconds = (sum(r[name] for r in rows) / n for name in ("ari", "oracle", "seconds"))
    groups = " ".join(str(r["groups"]) for r in rows)
    return (
        f"{first['world']:36s} {first['variant']:16s}{private} ARI {ari:.2f}  oracle {oracle:.2f}  "
        f"groups {groups} of {first['true_groups']}  {seconds:.2f} s"
    )


def scale_line(point: dict[str, Any]) -> str:
    return (
        f"{point['clients']:>8,} clients: {point['seconds']:6.1f} s of one core, {point['groups']} groups of 5, "
        f"ARI {point['ari']:.3f}"
    )
