"""One short federation of real processes, with TLS and keys: it learns what the simulator learns and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.federate import processes, start
from clusterfl.federate.folder import Federation
from clusterfl.federate.status import lines, status_of
from tests.federate.run_folder import every_command_works
from tests.flower.real import same_results
from tests.test_examples import EXAMPLES, printed


@pytest.mark.timeout(900)
def test_the_example_of_two_nodes_and_two_rounds(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "example-nodes"
    try:
        said = printed(next(path for path in EXAMPLES if path.stem == "deployment"), tmp_path)
    finally:
        if (run / "federation").exists():
            start.stop(Federation.read(run / "federation"))  # of a script that was ended from outside
    assert [f"round {r} is over" in said for r in range(4)] == [True, True, True, False]
    same_results(run, tmp_path / "runs" / "example-simulated")
    federation = Federation.read(run / "federation")
    assert processes.noted(federation) == []
    found = status_of(federation)
    assert [(n["name"], n["rounds"], n["failed"]) for n in found["nodes"]] == [("node-0", 2, 0), ("node-1", 2, 0)]
    assert found["server"] == "down" and found["run"] == "finished" and len(lines(found)) == 4
    no_secret_is_logged(federation)
    every_command_works(run, tmp_path)


def no_secret_is_logged(federation: Federation) -> None:
    """No line of a private key in any log, nor in the run's own folder."""
    keys = [federation.authority[1], federation.certificate[1], *(federation.folder / "nodes").glob("*/*key")]
    secrets = [line for key in keys for line in key.read_text().splitlines() if len(line) > 20 and "---" not in line]
    logs = [*federation.folder.rglob("*.log"), *(p for p in federation.run_folder.iterdir() if p.is_file())]
    assert len(keys) == 6 and len(secrets) > 6
    assert {"server.log", "run.log", "node.log"} <= {path.name for path in logs}
    for path in logs:
        text = path.read_bytes().decode(errors="replace")
        assert "PRIVATE KEY" not in text and not any(secret in text for secret in secrets), path
