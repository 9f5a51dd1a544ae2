"""The same config twice: simulated, and on real nodes, each a process of its own, over TLS. Both learn the same.

python examples/deployment.py               # a minute; needs clusterfl[flower]
python examples/deployment.py --simulate    # the first half alone
"""

import argparse
import json
from pathlib import Path

import clusterfl

NODES = 2
SETTINGS = ["rounds=2", "data.clusters=2", "data.samples=40", "data.unseen=0", f"data.clients={NODES}"]
SETTINGS += ["method.name=ifca", "method.k=2"]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulate", action="store_true")
    asked = parser.parse_args()
    config = clusterfl.Config.load(None, SETTINGS)
    simulated = clusterfl.run(config, out="runs/example-simulated", resume=True)
    print(f"simulated: accuracy {simulated.accuracy.mean:.3f}")
    if not asked.simulate:
        from clusterfl.federate import start

        folder = Path("runs/example-nodes")
        start.local(config, folder, NODES, force=True, told=lambda row: print(f"  round {row['round']} is over"))
        summary = json.loads((folder / "summary.json").read_text())
        print(f"on {NODES} nodes: accuracy {summary['accuracy_mean']:.3f}")
        print("report:", clusterfl.write_report(folder))
        assert summary["accuracy_mean"] == simulated.accuracy.mean
