"""The [method] table: methods that wrap others, other methods for the same run, and rules as parts."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from clusterfl.config import Config, tables
from clusterfl.config.methods import is_method, read_method, write_method
from clusterfl.fields import docs_of
from clusterfl.method import Method
from clusterfl.methods import IFCA, METHODS
from clusterfl.parts.aggregate import Krum, Mean, Median, MultiKrum, Trimmed
from clusterfl.parts.local import SGD

from .said import error


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back(name: str) -> None:
    config = Config.parse({"method": {"name": name}, "local": {"steps": 3}})
    assert getattr(config.method, "local", config.local) == SGD(steps=3)
    assert Config.parse(tomllib.loads(config.toml())) == config


def test_a_method_of_ours_is_written_by_its_name_even_when_its_place_was_asked_for() -> None:
    """Nodes allow no other code than ours: after such a run in the same process they refused fedavg."""
    placed = read_method({"name": "clusterfl.methods.fedavg:FedAvg"}, "method", SGD())
    assert write_method(placed)["name"] == "fedavg" == write_method(METHODS["fedavg"]())["name"]


def test_with_method_takes_its_table_and_the_common_k() -> None:
    config = Config.parse({"method": {"name": "ifca", "k": 3}, "methods": {"hypcluster": {"start": "independent"}}})
    other = config.with_method("hypcluster").method
    assert other.k == 3 and other.start == "independent"
    assert config.with_method("ifca") is config
    assert config.with_method("fedavg").with_seed(4).seed == 4
    own = Config.parse({"method": {"name": "ifca", "k": 3}, "methods": {"hypcluster": {"k": 2}}})
    assert own.with_method("hypcluster").method.k == 2


@dataclass(frozen=True)
class Wrapper(Method[Any]):
    name: ClassVar[str] = "wrapper"
    summary: ClassVar[str] = "a wrapper for this test"

    base: Method[Any] = IFCA()  # noqa: RUF009 (frozen)
    beta: float = 0.5

    def init(self, task: Any, cohort: Any, key: Any) -> Any: ...
    def round(self, state: Any, cohort: Any) -> Any: ...
    def serve(self, state: Any, ids: Any) -> Any: ...


def test_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "wrapper", Wrapper)
    table = {"name": "wrapper", "base": {"name": "hypcluster", "k": 2}, "beta": 1}
    config = Config.parse({"method": table, "local": {"lr": 0.3}})
    assert isinstance(config.method, Wrapper) and config.method.beta == 1.0
    assert config.method.base == METHODS["hypcluster"](k=2, local=config.local)
    assert Config.parse(tomllib.loads(config.toml())) == config
    assert read_method({"name": "wrapper"}, "method", SGD(lr=0.3)).base == IFCA(local=SGD(lr=0.3))  # type: ignore[attr-defined]
    unnamed = Config.parse({"method": {"name": "wrapper", "base": {"k": 2}}}).method
    assert unnamed.base == IFCA(k=2), "a base without a name is the wrapper's own"  # type: ignore[attr-defined]
    assert write_method(config.method)["base"]["name"] == "hypcluster"
    common = Config.parse({"method": {"name": "ifca", "k": 3}}).with_method("wrapper").method
    assert common.base.k == 3
    assert "method.base.k=99 should be at most" in error(method={"name": "wrapper", "base": {"name": "ifca", "k": 99}})
    assert "did you mean 'method.base.k'?" in error(method={"name": "wrapper", "base": {"name": "ifca", "kk": 2}})
    assert "method.base.name='icfa'" in error(method={"name": "wrapper", "base": {"name": "icfa"}})
    assert "method.base=3 should be a table" in error(method={"name": "wrapper", "base": 3})


@pytest.mark.parametrize(
    ("given", "rule", "written"),
    [
        ("median", Median(), "median"),
        ({"name": "median"}, Median(), "median"),
        ("krum", Krum(0.2), {"name": "krum", "attackers": 0.2}),
        ({"name": "trimmed", "attackers": 0.1}, Trimmed(0.1), {"name": "trimmed", "attackers": 0.1}),
        ({"name": "multi-krum"}, MultiKrum(), {"name": "multi-krum", "attackers": 0.2}),
        ("mean", Mean(), "mean"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedavg", "ifca", "robust-tkm"])
def test_a_rule_is_a_name_or_a_table_with_its_numbers(name: str, given: Any, rule: Any, written: Any) -> None:
    config = Config.parse({"method": {"name": name, "aggregate": given}})
    assert config.method.aggregate == rule and write_method(config.method)["aggregate"] == written  # type: ignore[attr-defined]
    assert Config.parse(tomllib.loads(config.toml())) == config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("medan", "method.aggregate='medan' should be one of 'mean', 'median', 'trimmed', 'krum', 'multi-krum'"),
        ({"name": "krumm"}, "method.aggregate.name='krumm' should be one of"),
        ({"attackers": 0.1}, "method.aggregate.name=None should be one of"),
        ({"name": "krum", "attackers": 0.5}, "method.aggregate.attackers=0.5 should be at least 0 and below 0.5"),
        ({"name": "krum", "attacker": 0.1}, "did you mean 'method.aggregate.attackers'?"),
        (3, "method.aggregate=3 should be one of"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_is_one_sentence(given: Any, said: str) -> None:
    assert said in error(method={"name": "fedavg", "aggregate": given})


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_says_what_it_means(name: str) -> None:
    hints = tables.hints_of(METHODS[name])
    for parameter, doc in docs_of(METHODS[name]).items():
        assert doc or parameter == "local" or is_method(hints[parameter]), f"{name}.{parameter}"
