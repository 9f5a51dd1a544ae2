"""``clusterfl inspect``: what a scenario gives each client, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterfl.commands.common import ConfigFile, DataRoot, Json, Set, Verbose, letter, say_json, set_logging

if TYPE_CHECKING:
    pass

SHOWN = 40  # clients in the printed table


def register(app: typer.Typer) -> None:
    app.command()(inspect)


def inspect(
    config: ConfigFile = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed (over the config's).")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.png", help="Draw the mix of labels by client.")
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Show the clients of a scenario: sizes, labels, true clusters.

    \b
    Examples:
      clusterfl inspect
      clusterfl inspect scenario.toml --picture labels.png
    """
    set_logging(verbose)
    from clusterfl.config import Config
    from clusterfl.data.overview import overview

    population = Config.load(config, set_, seed=seed, data_root=data_root).population()
    found = overview(population)
    if picture is not None:
        from clusterfl.report.labels import draw_labels

        draw_labels(population, picture)
    if json:
        say_json(found)
        return
    for line in lines(found):
        typer.echo(line)
    if picture is not None:
        typer.echo(f"drawn to {picture}")


def lines(found: dict[str, Any]) -> list[str]:
    shape = "x".join(map(str, found["input_shape"]))
    rows, numbers = found["per_client"], not found["classes"]
    sizes = sorted(r["train"] for r in rows)
    out = [
        f"{found['data']}: {found['clients']} clients that train, {found['unseen']} unseen, "
        f"{'targets are numbers' if numbers else str(found['classes']) + ' classes'}, samples of {shape}",
        f"train samples per client: {sizes[0]} to {sizes[-1]}, median {sizes[len(sizes) // 2]}; "
        f"true clusters: {found['true_clusters'] or 'not known'}{' (main group only)' if found['soft_truth'] else ''}",
        *(f"note: {n}" for n in found["notes"]),
        *([f"features: {', '.join(found['feature_names'])}"] if found["feature_names"] else []),
        *([f"classes: {', '.join(found['class_names'])}"] if found["class_names"] else []),
    ]
    wide = max(6, *(len(r["client"]) for r in rows[:SHOWN]))
    held = (
        "targets (mean ± standard deviation)" if numbers else "labels (share of each class in tenths, 0-9; . is none)"
    )
    out.append("client".ljust(wide) + f"  train   test  cluster  {held}")
    for r in rows[:SHOWN]:
        cluster = "-" if r["true_cluster"] is None else letter(r["true_cluster"])
        mark = " unseen" if r["unseen"] else ""
        labels = f"{r['target_mean']:.3g} ± {r['target_std']:.3g}" if numbers else mix(r["labels"])
        out.append(f"{r['client']:<{wide}s} {r['train']:6d} {r['test']:6d}  {cluster:>7s}  {labels}{mark}")
    if len(rows) > SHOWN:
        out.append(f"… and {len(rows) - SHOWN} more (--json shows all)")
    return out


def mix(counts: list[int]) -> str:
    """One character per class: its share of the client's samples in tenths."""
    total = max(sum(counts), 1)
    return "".join("." if c == 0 else str(min(int(10 * c / total), 9)) for c in counts)
