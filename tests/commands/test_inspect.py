"""clusterfl inspect: what a scenario gives each client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterfl.config import Config

from .calls import SETTINGS, SMALL, call, words


def test_inspect() -> None:
    population = Config.load(None, [f"{k}={v}" for k, v in SETTINGS.items()]).population()
    found = json.loads(call("inspect", *SMALL, "--json").stdout)
    assert found["clients"] == 8 and found["sha256"] == population.digest and found["classes"] == 10
    assert [c["train"] for c in found["per_client"]] == population.train.sizes.tolist()
    for i, entry in enumerate(found["per_client"]):
        assert entry["labels"] == population.train.of(i)[1].bincount(minlength=10).tolist()
        assert entry["unseen"] is (i >= 8)
    lines = call("inspect", *SMALL).stdout.splitlines()
    assert lines[0].startswith(found["data"]) and sum(line.startswith("client-") for line in lines) == len(
        found["per_client"]
    )


def test_many_clients_are_cut_and_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "labels.png"
    done = call("inspect", *SMALL, *words(["data.clients=50", "data.unseen=0"]), "--picture", str(picture))
    assert done.exit_code == 0 and "… and 10 more (--json shows all)" in done.stdout and picture.stat().st_size > 0


def test_groups_are_told_before_training() -> None:
    found = json.loads(call("inspect", *words(["data.clients=12", "data.unseen=0"]), "--groups", "--json").stdout)
    assert found["groups"] == 4 and found["ari"] == 1.0 and found["oracle_ari"] == 1.0 and found["sure"] > 0
    assert sum(map(len, found["members"])) == 12 and len(found["differ"]) == 6 and found["differ"][0]["classes"]
    text = call("inspect", *words(["data.clients=12", "data.unseen=0", "data.shift=none"]), "--groups").stdout
    assert "they form one group" in text
    wrong = call("inspect", "--groups", "--picture", "x.png")
    assert wrong.exit_code == 2 and "should" in wrong.stderr
