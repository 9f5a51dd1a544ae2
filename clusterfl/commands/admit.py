"""``clusterfl admit``: clients that were never in training get their cluster, their model and its accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import DataRoot, Json, Quiet, Verbose, letter, privacy_lines, say_json, set_logging


def register(app: typer.Typer) -> None:
    app.command()(admit)


def admit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, with its checkpoints.")],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="New clients: folder:PATH (one .npz each) or table:PATH."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write each client's own model here, as safetensors.")
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Give new clients a cluster and a model of a trained run.

    Without --data these are the run's own unseen clients.

    \b
    Examples:
      clusterfl admit runs/mine
      clusterfl admit runs/mine --data folder:new-clients --out their-models
    """
    set_logging(verbose, quiet)
    from clusterfl.runs.admission import admit as give
    from clusterfl.runs.data_card import check_rebuildable
    from clusterfl.scores import label

    check_rebuildable(run, "admit clients there, with clusterfl.admit(run, …)", ["method"])
    found = give(run, data, out=out, data_root=data_root)
    if json:
        say_json(found)
        return
    metric, wide = found["metric"], max(len(name) for name in found["clients"])
    for name, row in found["clients"].items():
        typer.echo(line(name.ljust(wide), row, metric))
    mean, n = found[f"{metric}_mean"], len(found["clients"])
    typer.echo(f"{n} client{'s' * (n > 1)}" + ("" if mean is None else f", {label(metric)} {mean:.3f}"))
    for text in [*(f"note: {note}" for note in found["notes"]), *privacy_lines(found["privacy"])]:
        typer.echo(text)
    if out is not None:
        typer.echo(f"written to {out}")


def line(name: str, row: dict[str, Any], metric: str = "accuracy") -> str:
    from clusterfl.scores import label

    score = "-" if row[metric] is None else f"{row[metric]:.3f}"
    true = "" if row["true_cluster"] is None else f"   true cluster {letter(row['true_cluster'])}"
    others = "" if not row["either"] else f" (may be {' or '.join(map(str, row['either']))})"
    return f"{name}   cluster {row['cluster']}{others}   {label(metric)} {score}   samples {row['samples']}{true}"
