"""``clusterfl predict``: what a client's model says about new samples."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from clusterfl.commands.common import DataRoot, Json, Verbose, say_json, set_logging


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[str, typer.Option("--client", metavar="NAME", help="Whose model.")],
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="A .csv, .parquet or .npz file of samples.")],
    data_root: DataRoot = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Predict samples by the model that a client really uses; prints one line per sample.

    Columns of a table are found by name; it needs neither clients nor labels.

    \b
    Examples:
      clusterfl predict runs/mine --client hospital-07 --data patients.csv
    """
    set_logging(verbose)
    from clusterfl.data.user_data import read_samples
    from clusterfl.errors import DataError
    from clusterfl.runs.trained import load

    trained = load(run, data_root=data_root)
    if not data.is_file():
        raise DataError(f"--data {data} should be a .csv, .parquet or .npz file")
    columns = trained.manifest.get("feature_names")
    x = read_samples(data, None if columns is None else tuple(columns), trained.manifest.get("categories"))
    found = trained.predict(client, x).tolist()
    sure = trained.probabilities(client, x).max(dim=1).values.tolist() if trained.classes else None
    if json:
        cluster = trained.cluster_of(client)
        shares = {} if sure is None else {"probabilities": sure}
        say_json({"client": client, "cluster": cluster, "predictions": found, **shares})
        return
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    head = ["row", "prediction"] if sure is None else ["row", "prediction", "probability"]
    columns = [found] if sure is None else [found, [f"{p:.4f}" for p in sure]]
    out.writerow(head)
    out.writerows((row, *cells) for row, cells in enumerate(zip(*columns, strict=True), start=1))
    typer.echo(text.getvalue(), nl=False)
