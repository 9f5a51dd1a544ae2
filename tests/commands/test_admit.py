"""clusterfl admit: newcomers of a run, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from .calls import SMALL, call, words


def test_admit(tmp_path: Path) -> None:
    run = str(tmp_path / "r")
    assert call("run", *SMALL, *words(["data.unseen=2"]), "--out", run, "--quiet").exit_code == 0
    found = json.loads(call("admit", run, "--json").stdout)
    assert list(found["clients"]) == ["client-08", "client-09"] and found["method"] == "kin"
    done = call("admit", run, "--out", str(tmp_path / "models"))
    assert done.exit_code == 0 and done.stdout.count("cluster ") >= 2
    assert f"2 clients, accuracy {found['accuracy_mean']:.3f}" in done.stdout and "written to" in done.stdout
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == ["client-08.safetensors", "client-09.safetensors"]
    missing = call("admit", str(tmp_path))
    assert missing.exit_code == 2 and "config.toml" in missing.stderr and len(missing.stderr.splitlines()) == 1
