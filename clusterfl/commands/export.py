"""``clusterfl export``: the models of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterfl.commands.common import DataRoot, Json, Verbose, say_json, set_logging


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder for models and manifest.")],
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="Only this client's model.")] = None,
    cluster: Annotated[int | None, typer.Option("--cluster", metavar="K", help="Only this cluster's model.")] = None,
    format: Annotated[
        str, typer.Option("--format", help="safetensors | torch (a program of torch.export) | onnx.")
    ] = "safetensors",
    data_root: DataRoot = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Write the models that clients really use, and a manifest, for programs without clusterfl.

    One file per client where the method gives each its own model, else one per cluster.

    \b
    Examples:
      clusterfl export runs/mine --to models
      clusterfl export runs/mine --to model --client hospital-07 --format torch
    """
    set_logging(verbose)
    from clusterfl.runs.export import export as write
    from clusterfl.runs.trained import load

    manifest = write(load(run, data_root=data_root), to, client=client, cluster=cluster, format=format)
    if json:
        say_json(manifest)
        return
    for entry in manifest["models"]:
        few = ", ".join(entry["clients"][:5]) + (f", … ({len(entry['clients'])})" if len(entry["clients"]) > 5 else "")
        typer.echo(f"{entry['file']}   cluster {entry['cluster']}   {few or 'no client'}")
    typer.echo(f"written to {to}")
