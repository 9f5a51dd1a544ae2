"""The papers' own settings: what each paper lists, in Python, in a config, on the command line and in a comparison."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import clusterfl
from clusterfl.config import Config
from clusterfl.engines.serial import Serial
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS, KMeans, fcca, md_icfl
from clusterfl.methods.presets import PAPER, preset
from clusterfl.parts.aggregate import Mean, Trimmed
from clusterfl.parts.flows import Fit
from clusterfl.parts.local import SGD
from clusterfl.parts.pseudo import BackSearch, GeneratorSearch, Prior
from clusterfl.testing.small import play, small_population, small_task

# as the papers list them, section by section
LISTED: dict[str, dict[str, Any]] = {
    "md-icfl": {
        "start": "independent",  # 3.4: "initialize K cluster model parameters and cluster identities randomly"
        "warmup": 0,
        "privacy": "weak",  # algorithm 1; algorithm 2 is "strong"
        "sampler": "back-search",  # MD-ICFL-1
        "samples": 30,  # section 4
        "iterations": None,  # 100 and 1000, by the sampler: a test of its own
        "rate": None,  # 0.1 and 0.01, alike
        "penalty": 0.1,
        "prior_mean": 0.5,  # section 5
        "squared": False,  # eqs. 6 and 7
        "generator_batch": 100,
        "generator_noise": 16,
        "warm": False,
    },
    "fedds": {"start": "independent", "warmup": 0, "weights": "size"},
    "feddsmic": {
        "start": "independent",
        "warmup": 0,
        "weights": "size",  # eq. 17
        "inner_lr": 0.01,
        "independent": True,  # eq. 14
        "personal_steps": 1,  # section 4.3
    },
    "fcca": {
        "recipe": "literal",
        "optimizer": None,  # as the recipe has it: a test of its own
        "standardised": None,
        "per_dim": None,
        "flow_lr": None,
        "order": "encoder-first",
        "warmup": 0,
        "centred": False,
        "alpha": 1.0,  # section 4
        "flow_steps": 20,  # section 4: K = 20
        "flow_batch": 64,
        "prox": 0.0,
        "per": False,
        "meta": 0.0,
    },
    "fesem": {
        "start": "kmeans-local",  # 6.1.4
        "by_size": True,  # eq. 7
        "weights": "uniform",  # eq. 9
        "distance_layers": "all",  # eq. 8
        "matched": False,  # section 5.1 is FeSEM-MA
    },
    "awcfl": {"beta": 0.5, "mix_for": "both", "base": KMeans()},  # table 1, algorithm 1
    "mcfl": {"base": KMeans(), "feature": "pixels", "norm": "l1", "noise": 0.0, "download": "each-round"},  # 3.2
    "ifca": {"start": "independent", "weights": "uniform", "aggregate": Mean()},
    "hypcluster": {"start": "independent", "server": "sgd", "server_lr": 1.0},  # the plain mean of a cluster
    "cfl": {
        "relative": False,
        "eps1": 0.4,
        "eps2": 1.6,
        "max_clusters": None,
        "gap": None,
        "start_round": 20,
        "linkage": "single",  # the bipartition that minimises the largest similarity across
        "min_size": 3,
    },
    "fedavg": {"weights": "size", "aggregate": Mean()},
    "fedavg-ft": {"weights": "size"},
    "feddane": {"weights": "size"},
    "feddist": {"eps": 0.6, "weights": "uniform"},  # FeSEM's 6.1.3, 9; eps of its authors' code
    "feddws": {"eps": 0.6, "weights": "size"},  # FeSEM's 6.1.3, 10
    "fedprox": {"mu": 0.1, "weights": "size"},  # FeSEM's 6.1.3, 8
    "fedfomo": {"models": 5, "epsilon": 0.3, "epsilon_decay": 0.05, "validation": 0.2},
    "fedper": {"weights": "size"},
    "per-fedavg": {"order": "first", "tune_steps": 1},
    "robust-tkm": {"aggregate": Trimmed()},  # of trimmed means and medians, the former
    "fl-hc": {"weights": "size"},
}
# what the papers do not say, sweep, or leave to the data; how exactly this library goes about it
OPEN: dict[str, set[str]] = {
    "md-icfl": {"k", "start_rounds", "generator_hidden", "warm_iterations", "admit_rounds"},
    "fedds": {"k", "admit_epochs"},
    "feddsmic": {"k", "admit_epochs"},
    "fcca": {"k", "dim", "blocks", "hidden", "clamp", "draws", "restarts"},
    "fesem": {"k", "proximal"},
    "mcfl": {"samples"},
    "kmeans": {"k", "restarts"},
    "ifca": {"k"},
    "hypcluster": {"k"},
    "cfl": {"r1", "r2", "gamma", "exact"},
    "fedavg-ft": {"tune_epochs"},
    "feddane": {"mu"},
    "fedper": {"layers", "tune_epochs"},
    "per-fedavg": {"alpha", "delta"},
    "pfa": {"k", "group_round", "units", "restarts"},
    "robust-tkm": {"k", "erm_epochs", "attackers", "exact"},
    "fl-hc": {"k", "threshold", "start_round", "metric", "linkage", "exact"},
}
# what makes a variant of the paper's own: who asks for the preset says which
VARIANTS: dict[str, set[str]] = {
    "md-icfl": {"privacy", "sampler"},
    "fcca": {"prox", "per", "meta"},
    "fesem": {"matched"},
    "awcfl": {"beta"},
    "fedprox": {"mu"},
    "robust-tkm": {"aggregate"},
}
LOCAL = {
    "md-icfl": SGD(lr=0.1, batch=50),
    "fedds": SGD(lr=0.01, momentum=0.9, batch=32, steps=20),
    "feddsmic": SGD(lr=0.01, momentum=0.9, batch=32, steps=20),
    "fcca": SGD(lr=0.01, batch=64, steps=20),
}


def test_the_five_papers_methods_and_their_baselines_have_one() -> None:
    assert PAPER.keys() <= METHODS.keys()
    of_the_papers = {"md-icfl", "fedds", "feddsmic", "fcca", "fesem", "awcfl", "mcfl"}
    baselines = {"local", "fedavg", "fedprox", "ifca", "per-fedavg", "fedper", "fedfomo", "cfl", "fl-hc", "hypcluster"}
    assert of_the_papers | baselines | {"feddist", "feddws", "feddane", "fedsgd", "robust-tkm"} <= PAPER.keys()


@pytest.mark.parametrize("name", PAPER)
def test_it_is_what_the_paper_lists(name: str) -> None:
    method = preset(name)
    for field, value in LISTED.get(name, {}).items():
        assert getattr(method, field) == value, field
    assert getattr(method, "local", SGD()) == LOCAL.get(name, SGD())


@pytest.mark.parametrize("name", PAPER)
def test_every_setting_is_listed_or_left_open(name: str) -> None:
    listed, left = set(LISTED.get(name, {})), OPEN.get(name, set())
    assert not listed & left
    assert listed | left | {"local"} >= {field.name for field in dataclasses.fields(METHODS[name])}
    assert not PAPER[name].method.keys() & left - {"start_rounds"}  # which a random start does not read
    assert set(PAPER[name].names) - {"start_rounds"} == listed - VARIANTS.get(name, set())


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("md-icfl", "samples", 3),
        ("md-icfl", "iterations", 7),
        ("md-icfl", "squared", True),
        ("feddsmic", "weights", "uniform"),
        ("feddsmic", "personal_steps", 2),
        ("fcca", "alpha", 0.0),
        ("fcca", "flow_lr", 0.5),
        ("fesem", "start", "independent"),
        ("fesem", "weights", "size"),
        ("mcfl", "feature", "embedding"),
        ("ifca", "weights", "size"),
        ("cfl", "max_clusters", 2),
        ("cfl", "min_size", 6),
        ("feddist", "eps", 0.9),
        ("fedfomo", "models", 2),
    ],
)
def test_over_a_file_it_is_the_papers_also_where_defaults_are(name: str, key: str, value: Any, tmp_path: Path) -> None:
    """What a file says of a setting that the paper gives is not left beside the preset, whether or not the default is
    the paper's."""
    file = tmp_path / "one.toml"
    file.write_text(tomli_w.dumps({"method": {"name": name, key: value}}))
    assert getattr(Config.load(file, []).method, key) == value != getattr(preset(name), key)
    assert getattr(Config.load(file, ["method.preset=paper"]).method, key) == getattr(preset(name), key)
    base = Config.parse({"methods": {name: {key: value}}})
    assert getattr(base.with_method(f"{name}@paper").method, key) == getattr(preset(name), key)


def test_the_searches_of_md_icfl_are_those_of_its_section_4() -> None:
    assert preset("md-icfl").searcher == BackSearch(30, Prior(0.1, 0.5), lr=0.1)
    assert preset("md-icfl", sampler="generator").searcher == GeneratorSearch(30, Prior(0.1, 0.5), 0.01, 100, 16)


@pytest.mark.parametrize(("sampler", "steps"), [("back-search", 100), ("generator", 1000)])
def test_and_take_as_many_steps(sampler: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def count(me: Any, theta: Any, sampler: Any, found: Any, iterations: int) -> Any:
        taken.append(iterations)
        return found

    monkeypatch.setattr(md_icfl, "search", count)
    play(preset("md-icfl", k=2, sampler=sampler, samples=1), Serial(small_task(), small_population()), rounds=1)
    assert set(taken) == {steps}


def test_the_flows_of_fcca_train_as_algorithm_1_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line 5: plain steps of size eta on the sum of eq. 3, K of them, on features as they are."""
    seen: list[Fit] = []

    def fit(*args: Any) -> Any:
        seen.extend(a for a in args if isinstance(a, Fit))
        return real(*args)

    real = fcca.fit
    monkeypatch.setattr(fcca, "fit", fit)
    play(preset("fcca", k=2), Serial(small_task(), small_population()), rounds=1)
    assert set(seen) == {Fit(steps=20, batch=64, lr=0.01, alpha=1.0, adam=False, per_dim=False)}


@pytest.mark.parametrize("name", PAPER)
def test_a_config_says_the_same_and_writes_it_out(name: str) -> None:
    config = Config.parse({"method": {"name": name, "preset": "paper"}})
    assert config.method == preset(name)
    assert Config.parse(tomllib.loads(config.toml())) == config
    assert "preset" not in config.table()["method"]


def test_fields_go_on_top() -> None:
    assert preset("md-icfl", k=6, warmup=2).hyper() == {**preset("md-icfl").hyper(), "k": 6, "warmup": 2}
    table = {"name": "feddsmic", "preset": "paper", "k": 3, "warmup": 2}
    config = Config.parse({"method": table, "local": {"lr": 0.5, "epochs": 2}})
    assert config.local == SGD(lr=0.5, momentum=0.9, batch=32, epochs=2)  # of epochs and steps, the one that is given
    assert config.method == preset("feddsmic", k=3, warmup=2, local=config.local)
    mixed = Config.parse({"method": {"name": "awcfl", "preset": "paper", "base": {"k": 2}}}).method
    assert mixed == preset("awcfl", base=KMeans(k=2))
    other = Config.parse({"method": {"name": "awcfl", "preset": "paper", "base": {"name": "ifca"}}}).method
    assert other.base.name == "ifca" and other.mix_for == "both"


def test_on_the_command_line_it_beats_the_file_and_is_beaten_by_what_stands_beside_it(tmp_path: Any) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[method]\nname = "feddsmic"\nk = 2\nwarmup = 7\n[local]\nlr = 0.3\nepochs = 4\nlr_decay = 0.9\n')
    config = Config.load(file, ["method.preset=paper", "local.batch=8"])
    assert (config.method.warmup, config.method.k) == (0, 2)  # type: ignore[attr-defined]
    assert config.local == SGD(lr=0.01, momentum=0.9, batch=8, steps=20, lr_decay=0.9)
    assert Config.load(file, ["method.preset=paper", "method.warmup=1"]).method.warmup == 1  # type: ignore[attr-defined]
    file.write_text('[method]\nname = "mcfl"\nbase = { name = "ifca", k = 2, start = "loss-pp" }\n')
    assert Config.load(file, ["method.preset=paper"]).method.base.k == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PAPER)
def test_over_the_demo_too_it_is_the_papers(name: str) -> None:
    """The demo's own settings of a method, which make it faster, are not the paper's."""
    config = Config.load(None, [f"method.name={name}", "method.preset=paper"])
    same = {} if hasattr(METHODS[name], "base") else {"local": config.local}
    base = preset(name, **same)
    if hasattr(base, "base"):
        base = dataclasses.replace(base, base=dataclasses.replace(base.base, local=config.local))
    assert config.method == base


@pytest.mark.parametrize(
    ("scenario", "name"), [("rotated-digits", "md-icfl"), ("rotated-digits", "mcfl"), ("rotated-mnist", "fcca")]
)
def test_in_a_comparison_what_it_names_beats_the_files_own_table_of_the_method(scenario: str, name: str) -> None:
    base = Config.load(Path("scenarios") / f"{scenario}.toml", [])
    mine, said = base.with_method(f"{name}@paper").method, PAPER[name].method
    assert base.methods[name].keys() & said.keys()
    for key in said.keys() - {"base"}:
        assert getattr(mine, key) == said[key], key
    if "base" in said:
        assert mine.base == KMeans(k=4, local=base.local)  # type: ignore[attr-defined]


def test_a_comparison_has_both_beside_each_other() -> None:
    base = Config.load(None, ["method.name=ifca", "method.k=3"])
    assert base.with_method("ifca@paper").method == preset("ifca", k=3, local=base.local)
    assert base.with_method("awcfl@paper").method.base == KMeans(k=3, local=base.local)  # type: ignore[attr-defined]
    own = Config.parse({**base.table(), "methods": {"md-icfl": {"samples": 4, "admit_rounds": 2}}})
    assert own.with_method("md-icfl@paper").method == preset("md-icfl", k=3, admit_rounds=2, local=base.local)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "ifca", "preset": "papr"}, "method.preset='papr' should be a known preset; did you mean 'paper'?"),
        ({"name": "ifca", "preset": 3}, "method.preset=3 should be a known preset"),
        ({"name": "ifca", "preset": "paper", "kk": 2}, "did you mean 'method.k'?"),
    ],
)
def test_what_cannot_be_is_one_sentence(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="should") as caught:
        Config.parse({"method": table})
    assert said in str(caught.value)


def test_the_package_offers_it() -> None:
    assert clusterfl.preset("ifca", "paper").start == "independent"  # type: ignore[attr-defined]
