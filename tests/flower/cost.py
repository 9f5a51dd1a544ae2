"""Seconds per round on four nodes, beside a bare Flower FedAvg app on the same data: `python -m tests.flower.cost`.

Both train and evaluate every node in every round, on the same server and one after the other, twice, in turns; in a
third turn clusterfl trains alone, which is what rounds would take if evaluation came with the training messages: all
rounds but the last, which is always measured.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from clusterfl.federate import control, processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import for_nodes, init
from tests.flower.real import TERMS, config

ROUNDS, NODES = max(2, int((sys.argv[1:] or ["4"])[0])), 4  # rounds of each turn

APP = """[project]
name = "bare"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "clusterfl"
[tool.flwr.app.components]
serverapp = "tests.flower.bare_app:server_app"
clientapp = "tests.flower.bare_app:client_app"
[tool.flwr.app.config]
rounds = %d
"""


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cost-"))
    times = folder / "times.json"
    os.environ["BARE_TIMES"] = str(times)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    names = tuple(f"node-{i}" for i in range(NODES))
    made = Federation(folder, names, port=processes.free_port(), demo=True, terms=TERMS)
    federation = init(made, config(NODES, "method.name=fedavg", f"rounds={ROUNDS}"))
    (folder / "bare").mkdir()
    (folder / "bare" / "pyproject.toml").write_text(APP % ROUNDS)
    found: dict[str, list[float]] = {"clusterfl": [], "clusterfl, training alone": [], "bare Flower": []}
    with start.everything_up(federation) as server:
        for turn in range(2):
            for name, every in (("clusterfl", 1), ("clusterfl, training alone", ROUNDS)):
                asked = config(NODES, "method.name=fedavg", f"rounds={ROUNDS}", f"eval_every={every}")
                federation.config.write_text(for_nodes(asked, federation).toml())
                start.follow(federation, server, force=True)
                rows = [json.loads(line) for line in (federation.run_folder / "rounds.jsonl").read_text().splitlines()]
                found[name] += [row["seconds"] for row in rows[1:] if (row["accuracy_mean"] is None) == (every > 1)]
            times.unlink(missing_ok=True)
            control.flwr(federation, ["run", str(folder / "bare"), control.LINK])
            while not times.exists():
                time.sleep(0.5)
            marks = json.loads(times.read_text())[: ROUNDS + 1]
            found["bare Flower"] += [b - a for a, b in pairwise(marks)]
            sys.stderr.write(f"turn {turn}: {found}\n")
        up, down = (rows[-1][n] - rows[0][n] for n in ("bytes_up", "bytes_down"))
    for name, seconds in found.items():
        sys.stdout.write(f"{name}: {median(seconds):.1f} s a round (median of {len(seconds)})\n")
    sys.stdout.write(f"payload of a round: {up // ROUNDS} bytes up, {down // ROUNDS} bytes down\n")


if __name__ == "__main__":
    main()
