"""The config: what is right loads and comes back, what is wrong is one sentence with the nearest key."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl import config as config_module
from clusterfl.config import ALIASES, Config, ModelConfig, read_method, write_method
from clusterfl.data.config import DataConfig
from clusterfl.engines.make import EngineConfig
from clusterfl.errors import ClusterflError, ConfigError, DataError
from clusterfl.method import Method
from clusterfl.methods import IFCA, METHODS
from clusterfl.models import MODELS
from clusterfl.parts.local import SGD

TOP = [name for name in Config.model_fields if name not in ("data", "model", "local", "method", "methods", "engine")]
TABLES: dict[str, Any] = {"data": DataConfig, "local": SGD, "engine": EngineConfig}
KEYS = TOP + [f"{table}.{f.name}" for table, cls in TABLES.items() for f in dataclasses.fields(cls)]
METHOD_KEYS = [
    (name, {v: k for k, v in ALIASES.items()}.get(f.name, f.name))
    for name, cls in METHODS.items()
    for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    if f.name != "local"
]
MODEL_KEYS = [(name, param) for name, entry in MODELS.items() for param in entry.params]


def error(*overrides: str, **table: Any) -> str:
    """The sentence that these overrides (or this table) are answered with."""
    with pytest.raises(ClusterflError) as caught:
        Config.parse(table) if table else Config.load(None, overrides)
    said = str(caught.value)
    assert "\n" not in said and "should" in said
    return said


def misspelt(word: str) -> str:
    return word + word[-1]


# -- what is right ---------------------------------------------------------------------------------------


def test_the_demo_loads_and_comes_back() -> None:
    demo = Config.load()
    assert demo.method == IFCA(k=4, init_from="kmeans-local", local=demo.local) and demo.data.clients == 24
    assert Config.parse(tomllib.loads(demo.toml())) == demo


def test_an_empty_table_is_a_config() -> None:
    assert Config.parse({}) == Config() and Config().method.name == "ifca"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back(name: str) -> None:
    config = Config.parse({"method": {"name": name}, "local": {"steps": 3}})
    assert getattr(config.method, "local", config.local) == SGD(steps=3)
    assert Config.parse(tomllib.loads(config.toml())) == config


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name: str) -> None:
    config = Config.parse({"model": {"name": name}})
    assert Config.parse(tomllib.loads(config.toml())) == config
    assert config.model.params == MODELS[name].params


def optional(values: Any) -> Any:
    return st.none() | values


configs = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**62),
        "rounds": st.integers(1, 1000),
        "participation": st.floats(0.001, 1) | st.just(1),
        "eval_every": st.integers(1, 9),
        "data": st.fixed_dictionaries(
            {"clients": st.integers(4, 50)},
            optional={
                "alpha": st.floats(0.01, 100),
                "samples": st.integers(2, 500) | st.just("none"),
                "test_samples": st.integers(10, 500) | st.just("none"),
                "unseen": st.integers(0, 5),
                "angles": st.lists(st.integers(0, 359), min_size=4, max_size=4),
                "sizes": st.sampled_from(["equal", "lognormal"]),
                "reuse": st.booleans(),
            },
        ),
        "local": st.fixed_dictionaries(
            {},
            optional={
                "lr": st.floats(1e-6, 10) | st.integers(1, 3),
                "momentum": st.floats(0, 0.99),
                "steps": st.integers(1, 99),
                "batch": st.integers(1, 99),
                "clip": st.floats(0.1, 10),
            },
        ),
        "model": st.fixed_dictionaries({"name": st.just("mlp")}, optional={"widths": st.lists(st.integers(1, 99))}),
        "method": st.fixed_dictionaries(
            {"name": st.sampled_from(["ifca", "hypcluster"])},
            optional={"k": st.integers(1, 4), "init": st.sampled_from(["loss-pp", "independent", "kmeans-local"])},
        ),
        "methods": st.just({"ifca": {"k": 3}}),
        "engine": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["serial", "stacked", "pool", "wire"]), "workers": st.integers(1, 9)}
        ),
    },
)


@given(configs)
@settings(max_examples=100, deadline=None)
def test_configs_come_back(table: dict[str, Any]) -> None:
    config = Config.parse(table)
    again = Config.parse(tomllib.loads(config.toml()))
    assert again == config and again.toml() == config.toml()


def test_the_resolved_config_comes_back() -> None:
    built = Config.load(None, ["data.samples=10", "engine.name=pool", "engine.workers=1"]).build()
    built.simulation.engine.close()
    assert Config.parse(tomllib.loads(built.config.toml())) == built.config
    assert built.config.data.test == "balanced" and built.config.engine.stacked is True


def test_overrides() -> None:
    def load(*overrides: str) -> Config:
        return Config.load(None, overrides)

    assert load("local.lr=0.05").local.lr == 0.05
    assert load("local.lr=1").local.lr == 1.0
    assert load("data.source=mnist").data.source == "mnist"
    assert load('data.source="mnist"').data.source == "mnist"
    assert load("data.shift=none").data.shift == "none"
    assert load("data.samples=none").data.samples is None
    assert load("data.alpha = 0.5").data.alpha == 0.5
    assert load("method.init=independent").method.init_from == "independent"
    assert load("method.init_from=independent").method.init_from == "independent"
    assert load("model.name=mlp", "model.widths=[8, 4]").model == ModelConfig("mlp", {"widths": (8, 4)})
    assert load("rounds=3", "rounds=4").rounds == 4
    assert load("data.clients=30", "data.source=folder:a=b").data.source == "folder:a=b"
    assert Config.load(None, seed=5).seed == 5
    assert Config.load(None, ["seed=3"], data_root="/x").data.root == "/x"


def test_another_method_or_model_leaves_the_files_parameters_behind(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[method]\nname = "ifca"\nk = 3\ninit = "independent"\n[model]\nname = "mlp"\nwidths = [5]\n')
    assert Config.load(path, ["method.name=fedavg"]).method.name == "fedavg"
    hyp = Config.load(path, ["method.name=hypcluster"]).method
    assert hyp.k == 3 and hyp.init_from == "loss-pp"
    assert Config.load(path, ["method.name=hypcluster", "method.k=2"]).method.k == 2
    assert Config.load(path, ["method.name=ifca"]).method.init_from == "independent"
    assert Config.load(path, ["model.name=mclr"]).model == ModelConfig("mclr", {})
    assert Config.load(path, ["model.name=mlp"]).model.params == {"widths": (5,)}


def test_with_method_takes_its_table_and_the_common_k() -> None:
    config = Config.parse({"method": {"name": "ifca", "k": 3}, "methods": {"hypcluster": {"init": "independent"}}})
    other = config.with_method("hypcluster").method
    assert other.k == 3 and other.init_from == "independent"
    assert config.with_method("ifca") is config
    assert config.with_method("fedavg").with_seed(4).seed == 4
    own = Config.parse({"method": {"name": "ifca", "k": 3}, "methods": {"hypcluster": {"k": 2}}})
    assert own.with_method("hypcluster").method.k == 2


# -- a method that wraps another -------------------------------------------------------------------------


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
    assert write_method(config.method)["base"]["name"] == "hypcluster"
    common = Config.parse({"method": {"name": "ifca", "k": 3}}).with_method("wrapper").method
    assert common.base.k == 3
    assert "method.base.k=99 should be at most" in error(method={"name": "wrapper", "base": {"name": "ifca", "k": 99}})
    assert "did you mean 'method.base.k'?" in error(method={"name": "wrapper", "base": {"name": "ifca", "kk": 2}})
    assert "method.base.name='icfa'" in error(method={"name": "wrapper", "base": {"name": "icfa"}})
    assert "method.base=3 should be a table" in error(method={"name": "wrapper", "base": 3})


# -- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_a_misspelt_key_gets_the_nearest(key: str) -> None:
    table, _, name = key.rpartition(".")
    wrong = f"{table}.{misspelt(name)}" if table else misspelt(name)
    said = error(f"{wrong}=1")
    assert said.startswith(f"{wrong}=1 ") and f"did you mean {key!r}?" in said


@pytest.mark.parametrize(("method", "key"), METHOD_KEYS)
def test_a_misspelt_method_parameter_gets_the_nearest(method: str, key: str) -> None:
    said = error(f"method.name={method}", f"method.{misspelt(key)}=1")
    assert f"did you mean 'method.{key}'?" in said


@pytest.mark.parametrize(("model", "key"), MODEL_KEYS)
def test_a_misspelt_model_parameter_gets_the_nearest(model: str, key: str) -> None:
    assert f"did you mean 'model.{key}'?" in error(f"model.name={model}", f"model.{misspelt(key)}=1")


@pytest.mark.parametrize("table", ["data", "model", "local", "method", "engine"])
def test_a_misspelt_table_gets_the_nearest(table: str) -> None:
    assert f"did you mean {table!r}?" in error(**{misspelt(table): {"name": "x"}})
    assert error(f"{table}=3") == f"{table}=3 should be a table"


@pytest.mark.parametrize("key", KEYS)
def test_the_wrong_type_is_refused(key: str) -> None:
    for value in ("[[1]]", "{a = 1}", "1979-05-27"):
        said = error(f"{key}={value}")
        assert said.startswith(key)


@pytest.mark.parametrize("key", [k for k in KEYS if k not in ("device", "data.source", "data.root")])
def test_text_is_refused_where_it_is_no_choice(key: str) -> None:
    assert error(f"{key}=gibberish").startswith(f"{key}='gibberish' should be ")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=-1", "seed=-1 should be at least 0"),
        ("rounds=0", "rounds=0 should be at least 1"),
        ("rounds=2.0", "rounds=2.0 should be a whole number"),
        ("rounds=true", "rounds=True should be a whole number"),
        ("participation=0", "participation=0 should be above 0"),
        ("participation=1.5", "participation=1.5 should be at most 1"),
        ("participation=nan", "participation=nan should be a finite number"),
        ("eval_every=0", "eval_every=0 should be at least 1"),
        ("device=gpu", "device='gpu' should be a PyTorch device"),
        ("data.clients=0", "data.clients=0 should be at least 1"),
        ("data.clusters=0", "data.clusters=0 should be at least 1"),
        ("data.clusters=99", "data.clusters=99 should be at most clients=24"),
        ("data.alpha=0", "data.alpha=0.0 should be above 0"),
        ("data.alpha=-1", "data.alpha=-1.0 should be above 0"),
        ("data.shift=rotat", "did you mean 'rotate'?"),
        ("data.unseen=-1", "data.unseen=-1 should be at least 0"),
        ("data.samples=1", "data.samples=1 should be at least 2"),
        ("data.angles=[1]", "data.angles="),
        ("local.lr=-1", "local.lr=-1.0 should be at least 0"),
        ("local.lr=inf", "local.lr=inf should be a number"),
        ("local.lr=nan", "local.lr=nan should be a number"),
        ("local.batch=0", "local.batch=0 should be at least 1"),
        ("local.epochs=0", "local.epochs=0 should be at least 1"),
        ("local.steps=0", "local.steps=0 should be at least 1"),
        ("local.epochs='1'", "local.epochs='1' should be a whole number"),
        ("local.epochs=none", "local.epochs=None and steps=None: one of them should be given"),
        ("method.k=0", "method.k=0 should be at least 1"),
        ("method.k=-1", "method.k=-1 should be at least 1"),
        ("method.k=25", "method.k=25 should be at most the number of clients, data.clients=24"),
        ("method.k=2.5", "method.k=2.5 should be a whole number"),
        ("method.name=ifcaa", "method.name='ifcaa' should be a known method; did you mean 'ifca'?"),
        ("method.name=3", "method.name=3 should be a known method"),
        ("method.name=[1]", "method.name=[1] should be a known method"),
        ("method.init=kmeans", "did you mean 'kmeans-local'?"),
        ("method.local.lr=1", "table [method.local] should be the table [local]"),
        ("model.name=mpl", "model.name='mpl' should be a known model; did you mean 'mlp'?"),
        ("model.widths=[1]", "model.widths=[1] should be a known key; known: name"),
        ("engine.name=stack", "did you mean 'stacked'?"),
        ("engine.chunk=0", "engine.chunk=0 should be at least 1"),
        ("engine.workers=0", "engine.workers=0 should be at least 1"),
        ("methods.ifca.kk=1", "did you mean 'methods.ifca.k'?"),
        ("methods.ifac.k=1", "did you mean 'ifca'?"),
        ("methods.ifca=1", "methods.ifca=1 should be a table"),
        ("methods=1", "methods=1 should be a table"),
        ("lr=0.1", "did you mean 'local.lr'?"),
        ("K=3", "did you mean 'method.k'?"),
        ("data.seed=3", "did you mean 'seed'?"),
        ("Rounds=3", "did you mean 'rounds'?"),
        ("data.test-samples=3", "did you mean 'data.test_samples'?"),
        ("rounds.x=3", "rounds should be a value, not a table with x"),
        ("rounds", "--set 'rounds' should be key=value"),
        ("=3", "--set '=3' should be key=value"),
        ("a..b=3", "--set 'a..b=3' should be key=value"),
    ],
)
def test_one_sentence(override: str, sentence: str) -> None:
    assert sentence in error(override)


def test_both_names_of_init_are_one_too_many() -> None:
    assert "given once" in error("method.init=loss-pp", "method.init_from=loss-pp")


def test_overrides_that_contradict_each_other() -> None:
    assert "should not lie below" in error("local.lr=1", "local.lr.x=2")


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_no_override_does_anything_but_load_or_one_sentence(text: str) -> None:
    for override in (text, f"{text}=1", f"data.{text}=1", f"method.name={text}", f"local.lr={text}"):
        try:
            Config.load(None, [override])
        except ConfigError as e:
            assert "should" in str(e)


@pytest.mark.parametrize("text", ["rounds = ", "[data\n", "\x00", 'a = "\\q"'])
def test_broken_files_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.toml should be a TOML file"):
        Config.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"broken\.toml should be a TOML file"):
        Config.load(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="should be a TOML file that can be read"):
            Config.load(path)


# -- what only the data can tell -------------------------------------------------------------------------


def test_a_missing_dataset_and_an_unknown_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data\.source='mnist' should have .*mnist\.npz"):
        Config.load(None, ["data.source=mnist"], data_root=tmp_path).build()
    with pytest.raises(ClusterflError, match="did you mean 'mnist'"):
        Config.load(None, ["data.source=mnits"]).build()


def test_a_model_that_does_not_fit_the_data() -> None:
    with pytest.raises(ConfigError, match=r"^model\."):
        Config.load(None, ["model.name=lenet", "model.padding=7"]).build()


def test_build_uses_every_table() -> None:
    config = Config.load(None, ["engine.name=serial", "data.indicators=2", "data.samples=20", "seed=3", "rounds=2"])
    simulation = config.build().simulation
    assert simulation.schedule.seed == 3 and simulation.schedule.rounds == 2
    assert simulation.population.clients == 24 and simulation.method is config.method
    public = simulation.engine.task.public
    assert public is not None and public.shape == (20, 1, 8, 8)
    assert config.population().digest == simulation.population.digest


def test_known_keys_are_unambiguous() -> None:
    known = config_module.known_keys()
    assert known["lr"] == "local.lr" and known["clients"] == "data.clients" and known["seed"] == "seed"
