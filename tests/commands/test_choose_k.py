"""clusterfl choose-k: a number where there are clusters, one sentence where the range cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterfl import keys
from clusterfl.commands.app import app
from clusterfl.config import Config
from clusterfl.runs.setup import prepare


@pytest.mark.parametrize(("shift", "k"), [("rotate", 4), ("swap_labels", 4), ("none", 1)])
def test_digits(shift: str, k: int) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--k", "1-6", "--set", f"data.shift={shift}", "--json"])
    assert found.exit_code == 0, found.output
    got = json.loads(found.stdout)
    assert got["k"] == k, got["reason"]
    assert [v["k"] for v in got["views"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("k", ["0-3", "1-99", "x"])
def test_an_impossible_range_is_one_sentence(k: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--k", k])
    assert found.exit_code == 2 and found.stderr.count("\n") == 1 and "should" in found.stderr


def test_under_privacy_it_says_what_it_spent_and_draws_noise_of_its_own() -> None:
    pytest.importorskip("dp_accounting")
    settings = ["data.clients=6", "data.clusters=2", "data.samples=20", "engine.name=serial", "privacy.clip=0.5"]
    words = ["choose-k", "--k", "1-2", "--most", "2", *(w for s in settings for w in ("--set", s))]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["privacy"]
    assert found["uploads"] == 2 and found["epsilon"] > 0.0 and found["uncovered"] == []
    plain = CliRunner().invoke(app, words).stdout
    assert f"epsilon {found['epsilon']:.3g} (delta 1e-05)" in plain and "no ledger joins the two" in plain
    views = [json.loads(CliRunner().invoke(app, [*words, "--json", *more]).stdout)["views"] for more in ([], LOWER)]
    assert views[0] != views[1]


@pytest.mark.parametrize(
    "look", [["choose-k", "--by", "kin"], ["choose-k", "--by", "fesem", "--k", "1-2"], ["inspect", "--groups"]]
)
def test_every_look_says_what_it_spent_and_draws_noise_of_its_own(look: list[str]) -> None:
    """Evidence and FeSEM's way said nothing, and drew the noise of a run of the same seed."""
    pytest.importorskip("dp_accounting")
    settings = ["data.clients=6", "data.clusters=2", "data.samples=20", "engine.name=serial", "privacy.clip=0.5"]
    words = [*look, *(w for s in settings for w in ("--set", s))]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["privacy"]["uploads"] > 0 and found["privacy"]["epsilon"] > 0.0
    plain = CliRunner().invoke(app, words).stdout
    assert f"epsilon {found['privacy']['epsilon']:.3g} (delta 1e-05)" in plain and "no ledger joins the two" in plain


def test_a_key_of_a_look_is_its_own_under_privacy_alone() -> None:
    small = ["data.clients=6", "data.clusters=2", "data.samples=20", "engine.name=serial"]
    plain, private = (prepare(Config.load(None, [*small, *more])) for more in ([], ["privacy.clip=0.5"]))
    assert int(plain.key_of_a_look("groups")) == int(keys.key(0))
    others = {int(private.key_of_a_look(what)) for what in ("groups", "choose-k")}
    assert len(others | {int(keys.key(0))}) == 3


def test_fesems_accuracies_are_not_looked_at_where_none_are_published() -> None:
    pytest.importorskip("dp_accounting")
    asked = ["choose-k", "--by", "fesem", "--set", "privacy.clip=0.5", "--set", "privacy.publish_metrics=false"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 2 and "privacy.publish_metrics=false should be true with --by fesem" in found.stderr


def test_the_criterion_of_distances_needs_fesem_and_three_numbers() -> None:
    for more, said in (([], "--by fesem"), (["--by", "fesem", "--k", "1-2"], "three numbers or more")):
        found = CliRunner().invoke(app, ["choose-k", "--criterion", "distance", *more])
        assert found.exit_code == 2 and said in found.stderr
    small = ["data.clients=6", "data.clusters=2", "data.samples=20", "engine.name=serial"]
    words = ["choose-k", "--by", "fesem", "--criterion", "distance", "--k", "1-3", "--json"]
    found = CliRunner().invoke(app, [*words, *(w for s in small for w in ("--set", s))])
    assert "distance" in json.loads(found.stdout)["reason"]


LOWER = ["--set", "local.lr=0.0999999"]  # the same updates but for rounding: the same noise would give the same views


@pytest.mark.parametrize(("shift", "k"), [("rotate", 4), ("none", 1)])
def test_evidence_needs_no_training(shift: str, k: int) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--by", "kin", "--set", f"data.shift={shift}", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["k"] == k and json.loads(found.stdout)["runs"] == 0
