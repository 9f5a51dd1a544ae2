"""Your own table: who belongs together, a model for each group, a page to show, and predictions by name.

python examples/own_table.py              # or: … --out runs/own
"""

import argparse
import csv
from pathlib import Path

import numpy as np

import clusterfl

HOSPITALS = ("Ahlen", "Bern", "Cork", "Delft", "Essen", "Fano", "Ghent", "Hanau", "Imola", "Jena")


def write_table(path: Path) -> None:
    """One row per patient. In every other hospital age works the other way round, and nobody has noticed."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "fever", "age", "pulse", "label"])
        for i, name in enumerate(HOSPITALS):
            for fever, age, pulse in rng.normal(size=(80, 3)).round(3).tolist():
                severe = fever + (age if i % 2 else -age) > 0
                rows.writerow([name, fever, age, pulse, "severe" if severe else "mild"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/example-table"))
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(table := out.with_suffix(".csv"))
    settings = [f"data.source=table:{table}", "method.name=ifca", "method.k=2", "rounds=10", "local.lr=0.2"]
    outcome = clusterfl.run(clusterfl.Config.load(None, settings), out=out, resume=True)
    print(outcome)
    print("report:", clusterfl.write_report(out))
    trained = clusterfl.load(out)
    patient = [[0.2, 1.4, 0.0]]  # fever, age, pulse
    for name in ("Ahlen", "Bern"):
        print(f"{name}: cluster {trained.cluster_of(name)} says {trained.predict(name, patient)[0]}")
