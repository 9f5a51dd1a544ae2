"""Several methods on the same clients, in Python: one line each, and a report of all of them.

python examples/comparison.py
"""

from pathlib import Path

import clusterfl
from clusterfl.report.page import write_report

if __name__ == "__main__":
    base = clusterfl.Config.load(None, ["rounds=5", "data.clients=12", "engine.name=serial"])
    folders = []
    for name in ("local", "fedavg", "ifca", "ifca:k=2"):
        folder = Path("runs/example-comparison") / name.replace(":", "-")
        outcome = clusterfl.run(base.variant(name), out=folder, resume=True)
        folders.append(folder)
        print(f"{name:10} accuracy {outcome.accuracy.mean:.3f}, worst five {outcome.accuracy.bottom5:.3f}")
    print("report:", write_report(*folders))
