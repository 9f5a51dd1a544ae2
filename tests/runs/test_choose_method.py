"""The decision table: every row can be reached, every recommendation is a config that loads."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import pytest

from clusterfl.config import Config
from clusterfl.methods import METHODS
from clusterfl.runs.choose_method import REASONS, Situation, recommend
from tests.commands.calls import SMALL, call

PAGE = Path(__file__).parents[2] / "docs" / "which-method.md"


def everything() -> list[Situation]:
    yes = ("yes", "no")
    asked = itertools.product(
        (None, 1, 3), yes, yes, yes, ("signal", "nuisance"), ("none", "labelled", "unlabelled"), yes
    )
    return [Situation(*answers) for answers in asked]


def test_every_answer_leads_to_a_method_that_loads_and_every_reason_is_used() -> None:
    found = {(r := recommend(situation)).method: r for situation in everything()}
    assert set(found) == set(REASONS)
    for advice in {r.toml(): r for r in map(recommend, everything())}.values():
        table = tomllib.loads(advice.toml())
        assert advice.method in METHODS and Config.parse(table).method.name == advice.method
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in REASONS)


def test_what_may_not_leave_decides() -> None:
    assert recommend(Situation(individual="no")).method == "fedavg"
    assert recommend(Situation(individual="no", k=4)).toml() == '[method]\nname = "ifca"\nk = 4'
    assert recommend(Situation(statistics="no")).method == "cfl"
    assert recommend(Situation(statistics="no", k=4)).method == "md-icfl"


def test_the_command(tmp_path: Path) -> None:
    done = call("choose-method", "--answer", "statistics=no", "--answer", "k=4", "--answer", "bytes=no", *SMALL)
    assert done.exit_code == 0 and "begin with ifca" in done.stdout and "8 clients" in done.stdout
    said = json.loads(call("choose-method", "--json").stdout)
    assert said["method"] == recommend(Situation()).method and tomllib.loads(said["toml"])
    wrong = call("choose-method", "--answer", "statistics=maybe")
    assert wrong.exit_code == 2 and "answer.statistics='maybe' should be" in wrong.stderr


@pytest.mark.parametrize("word", ["k=0", "colour=red"])
def test_wrong_answers_are_refused(word: str) -> None:
    assert call("choose-method", "--answer", word).exit_code == 2
