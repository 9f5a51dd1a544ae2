"""The study of kin's evidence: its worlds, its oracle and its ablation."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from typer.testing import CliRunner

from clusterfl.bench.evidence import VARIANTS, scale
from clusterfl.commands.app import app

WORLD = [
    "bench-groups",
    "--sources",
    "digits",
    "--shifts",
    "rotate",
    "--alphas",
    "iid",
    "--seeds",
    "0",
    "--clients",
    "8",
]


def test_every_variant_runs_and_the_whole_finds_what_can_be_found() -> None:
    found = CliRunner().invoke(app, [*WORLD, "--variants", "all", "--json"])
    assert found.exit_code == 0, found.output
    rows = {row["variant"]: row for row in json.loads(found.stdout)}
    assert set(rows) == set(VARIANTS) and rows["whole"]["ari"] == 1.0 and rows["whole"]["oracle"] == 1.0


def test_privacy_has_its_price(tmp_path: Path) -> None:
    picture = tmp_path / "price.svg"
    found = CliRunner().invoke(app, [*WORLD, "--epsilon", "0.01,1000", "--json", "--figure", str(picture)])
    assert json.loads(found.stdout)[0]["ari"] < 1.0
    drawn = ElementTree.fromstring(picture.read_text())
    assert len(drawn.findall("{*}circle")) == 2 and len(drawn.findall("{*}polyline")) == 1
    alone = CliRunner().invoke(app, [*WORLD, "--figure", str(picture)])
    assert alone.exit_code == 2 and "should go with --epsilon" in alone.stderr
    wrong = CliRunner().invoke(app, [*WORLD, "--variants", "x"])
    assert wrong.exit_code == 2 and "should be one of" in wrong.stderr


def test_synthetic_statistics_are_grouped() -> None:
    assert scale(60)["ari"] > 0.95
