"""What is wrong in a config is one sentence with the nearest key."""

from __future__ import annotations

import dataclasses

import pytest

from clusterfl.config import Config
from clusterfl.config.schema import _TABLES, known_keys
from clusterfl.methods import METHODS
from clusterfl.models import MODELS

from .said import error

TOP = [name for name in Config.model_fields if name not in ("model", "method", "methods", *_TABLES)]


KEYS = TOP + [f"{table}.{f.name}" for table, cls in _TABLES.items() for f in dataclasses.fields(cls)]


METHOD_KEYS = [
    (name, f.name)
    for name, cls in METHODS.items()
    for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    if f.name != "local"
]


MODEL_KEYS = [(name, param) for name, entry in MODELS.items() for param in entry.params]


def misspelt(word: str) -> str:
    return word + word[-1]


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


@pytest.mark.parametrize("table", ["model", "method", *_TABLES])
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
        ("method.groups=0", "method.groups=0 should be at least 1"),
        ("method.groups=2.5", "method.groups=2.5 should be a whole number"),
        ("method.k=2", "method.k=2 should be left out: kin finds the number of groups itself; method.groups fixes it"),
        ("method.k=2", "or method.name=ifca chooses a method that is told it"),
        ("methods.kin.k=2", "methods.kin.k=2 should be left out: kin finds the number of groups itself"),
        ("method.name=ifcaa", "method.name='ifcaa' should be a known method; did you mean 'ifca'?"),
        ("method.name=3", "method.name=3 should be a known method"),
        ("method.name=[1]", "method.name=[1] should be a known method"),
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


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("method.k=0", "method.k=0 should be at least 1"),
        ("method.k=-1", "method.k=-1 should be at least 1"),
        ("method.k=25", "method.k=25 should be at most the number of clients, data.clients=24"),
        ("method.k=2.5", "method.k=2.5 should be a whole number"),
        ("method.start=kmeans", "did you mean 'kmeans-local'?"),
    ],
)
def test_one_sentence_about_a_number_of_clusters_and_a_start(override: str, sentence: str) -> None:
    assert sentence in error("method.name=ifca", override)


@pytest.mark.parametrize("key", ["k", "start"])
def test_a_key_that_a_method_lacks_is_not_suggested_to_it(key: str) -> None:
    said = error("method.name=fedavg", f"method.{key}=2")
    assert said == f"method.{key}=2 should be a known key; known: aggregate, weights"


def test_known_keys_are_unambiguous() -> None:
    known = known_keys()
    assert known["lr"] == "local.lr" and known["clients"] == "data.clients" and known["seed"] == "seed"
