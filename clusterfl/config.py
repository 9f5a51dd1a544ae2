"""One typed config: a TOML file, ``a.b=c`` overrides, and the run that they describe."""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from torch import Tensor

from clusterfl import keys, tables
from clusterfl.checkpoint import CheckpointConfig
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines.attack import AttackConfig, attackers, flip_labels
from clusterfl.engines.make import EngineConfig, Load, check_device, make_engine, resolve
from clusterfl.engines.privacy import PrivacyConfig
from clusterfl.errors import ConfigError
from clusterfl.files import read_some
from clusterfl.loop import Schedule, Simulation
from clusterfl.memory import give_back
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.models import MODELS, build_model
from clusterfl.parts.local import SGD
from clusterfl.tables import Table, UnknownKey, as_table, closest, dotted, shown
from clusterfl.task import Task

MOST = 1 << 20  # bytes of a config file
DEMO = Path(__file__).with_name("demo.toml")
ALIASES = {"init": "init_from"}  # a method's field cannot be called init: that is its first step


@dataclass(frozen=True)
class ModelConfig:
    """The ``[model]`` table: a name, and that model's own parameters."""

    name: str = "mclr"
    params: Table = field(default_factory=dict)

    @staticmethod
    def read(table: Mapping[str, Any]) -> ModelConfig:
        given = dict(table)
        name = tables.choice("model.name", given.pop("name", ModelConfig.name), MODELS, "a known model")
        entry = MODELS[name]
        hints, params = tables.hints_of(entry.builder), dict(entry.params)
        for key, value in given.items():
            if key not in params:
                raise UnknownKey("model", key, value, ["name", *params])
            params[key] = tables.value_of(hints[key], value, f"model.{key}")
        return ModelConfig(name, params)

    def write(self) -> Table:
        return {"name": self.name, **tables.plain(self.params)}


class Config(BaseModel):
    """Everything that decides a run. Equal configs give equal results, bit for bit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="of the data, the start, the sampling and the training")
    rounds: int = Field(20, ge=1, description="communication rounds")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients asked in a round")
    eval_every: int = Field(1, ge=1, description="rounds between measurements; the last round is always measured")
    device: str = Field("cpu", description="where clients compute, as PyTorch calls it")
    data: InstanceOf[DataConfig] = Field(default_factory=DataConfig)
    model: InstanceOf[ModelConfig] = Field(default_factory=lambda: ModelConfig.read({}))
    local: InstanceOf[SGD] = Field(default_factory=SGD)
    method: InstanceOf[Method[Any]] = Field(default_factory=dict, validate_default=True)
    methods: dict[str, Table] = Field(default_factory=dict, description="parameters of other methods, for compare")
    engine: InstanceOf[EngineConfig] = Field(default_factory=EngineConfig)
    checkpoint: InstanceOf[CheckpointConfig] = Field(default_factory=CheckpointConfig)
    attack: InstanceOf[AttackConfig] = Field(default_factory=AttackConfig)
    privacy: InstanceOf[PrivacyConfig] = Field(default_factory=PrivacyConfig)

    # -- from tables ---------------------------------------------------------------------------------

    @staticmethod
    def load(
        path: str | Path | None = None,
        overrides: Iterable[str] = (),
        *,
        seed: int | None = None,
        data_root: str | Path | None = None,
    ) -> Config:
        """The config of a file (None: the demo) with ``a.b=c`` overrides on top."""
        table = read_toml(Path(path) if path is not None else DEMO)
        changes: Table = {}
        for text in overrides:
            _put(changes, *_override(text))
        if seed is not None:
            changes["seed"] = seed
        if data_root is not None:
            _put(changes, ["data", "root"], str(data_root))
        for given in (table, changes):
            _use_aliases(given.get("method"))
        for kind in ("method", "model"):
            chosen = changes.get(kind)
            name = chosen.get("name") if isinstance(chosen, dict) else None
            if isinstance(name, str) and name != _name(table.get(kind), kind):
                # the file's parameters were another's
                table[kind] = _switched(table, name) if kind == "method" else {"name": name}
        return Config.parse(merged(table, changes))

    @staticmethod
    def parse(table: Mapping[str, Any]) -> Config:
        """The config of a nested table; ConfigError, in one sentence, for the first thing that is wrong."""
        try:
            return Config(**table)
        except UnknownKey as e:
            raise _better(e) from None
        except ValidationError as e:
            raise _sentence(e.errors()[0]) from None

    @field_validator("data", "local", "engine", "model", "checkpoint", "attack", "privacy", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        kind = {**_TABLES, "model": ModelConfig}[info.field_name]
        if isinstance(value, kind):
            return value
        table = as_table(value, info.field_name)
        return ModelConfig.read(table) if kind is ModelConfig else tables.read(kind, table, info.field_name)

    @field_validator("method", mode="before")
    @classmethod
    def _read_method(cls, value: Any, info: ValidationInfo) -> Any:
        local = info.data.get("local", SGD())
        return value if isinstance(value, Method) else read_method(value, "method", local)

    @field_validator("methods", mode="before")
    @classmethod
    def _check_methods(cls, value: Any) -> Any:
        for name, table in as_table(value, "methods").items():
            tables.choice("methods", name, METHODS, "the names of known methods")
            read_method({**as_table(table, f"methods.{name}"), "name": name}, f"methods.{name}", SGD())
        return value

    def model_post_init(self, context: Any) -> None:
        check_device(self.device)
        if self.data.clients:
            check_k(self.method, self.data.clients)

    # -- to tables -----------------------------------------------------------------------------------

    def table(self) -> Table:
        """The nested table that :meth:`parse` turns back into this config."""
        scalars = {n: getattr(self, n) for n in ("seed", "rounds", "participation", "eval_every", "device")}
        written = {
            **scalars,
            "data": tables.write(self.data),
            "model": self.model.write(),
            "local": tables.write(self.local),
            "method": write_method(self.method),
            "engine": tables.write(self.engine),
            "checkpoint": tables.write(self.checkpoint),
            "attack": tables.write(self.attack),
            "privacy": tables.write(self.privacy),
        }
        return {**written, "methods": self.methods} if self.methods else written

    def toml(self) -> str:
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """SHA-256 of what a resumed run may not change: all but its length and how it is carried out."""
        fixed = {k: v for k, v in self.table().items() if k not in ("rounds", "checkpoint", "methods")}
        fixed["engine"] = {k: v for k, v in fixed["engine"].items() if k not in ("workers", "address")}
        return hashlib.sha256(tomli_w.dumps(fixed).encode()).hexdigest()

    # -- variations and the run ----------------------------------------------------------------------

    def with_method(self, name: str) -> Config:
        """The same run with another method: its ``[methods.name]`` table, and this one's ``k`` if it has a k."""
        if name == self.method.name:
            return self
        return Config.parse({**self.table(), "method": _switched(self.table(), name)})

    def with_seed(self, seed: int) -> Config:
        return Config.parse({**self.table(), "seed": seed})

    def population(self) -> Population:
        """The clients and their data; attackers who flip labels have flipped them."""
        with tables.naming("data"):
            made = build(self.data, keys.fold_in(keys.key(self.seed), "data"))
        made = flip_labels(made, self.attackers(made)) if self.attack.kind == "label-flip" else made
        give_back()
        return made

    def attackers(self, population: Population) -> Tensor:
        """The ids of the clients that lie."""
        with tables.naming("attack"):
            return attackers(self.attack, population, keys.fold_in(keys.key(self.seed), "attack"))

    def build(self, population: Population | None = None) -> Built:
        """Everything a run needs. ``population`` is this config's own, where it is at hand already."""
        population = population or self.population()
        check_k(self.method, population.clients)
        with tables.naming("model"):
            module = build_model(self.model.name, population.input_shape, population.classes, **self.model.params)
        task = Task(module, population.classes)
        task.public = None if population.indicators is None else population.indicators[0]
        per_round = max(1, round(self.participation * population.clients))
        load = Load(self.local, per_round, self.rounds)
        engine = resolve(self.engine, task, population, self.device, load)
        resolved = self.model_copy(update={"data": self.data.resolved(), "engine": engine})
        schedule = Schedule(self.rounds, self.participation, self.seed, self.eval_every)
        made = make_engine(
            engine,
            task,
            population,
            self.device,
            attack=self.attack,
            attackers=self.attackers(population),
            privacy=self.privacy,
        )
        return Built(resolved, Simulation(self.method, population, made, schedule))


@dataclass(frozen=True)
class Built:
    """A run that can start: its resolved config and its simulation."""

    config: Config
    simulation: Simulation


# -- methods ---------------------------------------------------------------------------------------------


def read_method(table: Any, path: str, local: SGD) -> Method[Any]:
    """A method from its table; fields that are methods themselves (``base``) are tables with a name again."""
    given = as_table(table, path)
    name = tables.choice(dotted(path, "name"), given.pop("name", "ifca"), METHODS, "a known method")

    def convert(hint: Any, value: Any, where: str) -> Any:
        if not is_method(hint):
            return tables.value_of(hint, value, where)
        return value if isinstance(value, Method) else read_method(value, where, local)

    cls = METHODS[name]
    fixed = {"local": local} if "local" in tables.hints_of(cls) else {}
    if "local" in given and fixed:
        raise ConfigError(f"table [{path}.local] should be the table [local]: all methods train by it")
    method: Any = tables.read(cls, given, path, given=fixed, aliases=ALIASES, convert=convert)
    # a default base comes with default training
    bases = {
        f.name: dataclasses.replace(base, local=local)  # type: ignore[type-var]
        for f, base in parts_of(method)
        if f.name not in given and "local" in tables.hints_of(type(base))
    }
    made: Method[Any] = dataclasses.replace(method, **bases)
    return made


def write_method(method: Method[Any]) -> Table:
    table = {"name": method.name, **tables.write(method, skip=("local",), keys={v: k for k, v in ALIASES.items()})}
    return {**table, **{f.name: write_method(base) for f, base in parts_of(method)}}


def parts_of(method: Method[Any]) -> Iterator[tuple[dataclasses.Field[Any], Method[Any]]]:
    """The fields of a method that are methods."""
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if isinstance(value, Method):
            yield f, value


def is_method(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, Method)


def check_k(method: Method[Any], clients: int, path: str = "method") -> None:
    """A method's number of clusters is possible with so many clients."""
    k = getattr(method, "k", None)
    if isinstance(k, int) and k < 1:
        raise ConfigError(f"{path}.k={k} should be at least 1")
    if isinstance(k, int) and k > clients:
        raise ConfigError(f"{path}.k={k} should be at most the number of clients, data.clients={clients}")
    for f, base in parts_of(method):
        check_k(base, clients, f"{path}.{f.name}")


def _switched(table: Mapping[str, Any], name: str) -> Table:
    """The ``[method]`` table when another method is asked for: its own parameters, and the common k."""
    tables.choice("method.name", name, METHODS, "a known method")
    before, own = table.get("method"), table.get("methods", {})
    new = dict(own.get(name, {})) if isinstance(own, dict) else {}
    k = before.get("k") if isinstance(before, dict) else None
    return {**({} if k is None else _with_k(METHODS[name], k)), **new, "name": name}


def _with_k(cls: type[Method[Any]], k: int) -> Table:
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name == "k":
            return {"k": k}
        base = f.default if f.default is not dataclasses.MISSING else None
        if isinstance(base, Method) and (inner := _with_k(type(base), k)):
            return {f.name: {"name": base.name, **inner}}
    return {}


# -- tables and overrides --------------------------------------------------------------------------------


def read_toml(path: Path) -> Table:
    try:
        return tomllib.loads(read_some(path, MOST).decode("utf-8"))
    except RecursionError:
        raise ConfigError(f"{path} should be a TOML file that is not nested so deeply") from None
    except OSError as e:
        raise ConfigError(f"{path} should be a TOML file that can be read, but: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} should be a TOML file, but: {e}") from None


def _override(text: str) -> tuple[list[str], Any]:
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise ConfigError(f"--set {text!r} should be key=value, for example local.lr=0.05")
    try:
        found = tomllib.loads(f"value = {value}")
        return path, found["value"] if len(found) == 1 else value
    except tomllib.TOMLDecodeError:
        return path, value.strip()  # text needs no quotes here


def _put(table: Table, path: Sequence[str], value: Any) -> None:
    for depth, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{'.'.join(path)} should not lie below {'.'.join(path[:depth])}, which is a value")
    table[path[-1]] = value


def _use_aliases(method: Any) -> None:
    """One name for each parameter, so that an override finds what it is to replace."""
    for key, name in ALIASES.items():
        if isinstance(method, dict) and name in method and key not in method:
            method[key] = method.pop(name)


def merged(table: Table, changes: Table, path: str = "") -> Table:
    out = dict(table)
    for key, value in changes.items():
        if not isinstance(value, dict) or key not in out:
            out[key] = value
        elif isinstance(out[key], dict):
            out[key] = merged(out[key], value, dotted(path, key))
        else:
            raise ConfigError(f"{dotted(path, key)} should be a value, not a table with {', '.join(value)}")
    return out


def _name(table: Any, kind: str) -> str:
    default = {"method": "ifca", "model": ModelConfig.name}[kind]
    return str(table.get("name", default)) if isinstance(table, dict) else default


# -- errors ----------------------------------------------------------------------------------------------


def known_keys() -> dict[str, str]:
    """Every key's last part and its dotted path; keys of methods and models count only where they apply."""
    found = {f.name: f"{table}.{f.name}" for table, cls in _TABLES.items() for f in dataclasses.fields(cls)}
    found.pop("name", None)
    return found | {"k": "method.k", "init": "method.init"} | {name: name for name in Config.model_fields}


_TABLES: dict[str, Any] = {
    "attack": AttackConfig,
    "privacy": PrivacyConfig,
    "engine": EngineConfig,
    "data": DataConfig,
    "local": SGD,
    "checkpoint": CheckpointConfig,
}


def _better(error: UnknownKey) -> UnknownKey:
    """A key that exists, but in another table, is suggested with that table."""
    elsewhere = known_keys()
    exact = elsewhere.get(error.key.casefold())
    near = exact or (None if error.close else elsewhere.get(closest(error.key, elsewhere, 0.75) or ""))
    return UnknownKey(error.path, error.key, error.value, error.known, near)


def _sentence(error: ErrorDetails) -> ConfigError:
    """A pydantic error about one of the config's own keys as one sentence."""
    path, value = ".".join(str(part) for part in error["loc"]), error["input"]
    if error["type"] == "extra_forbidden":
        return _better(UnknownKey("", path, value, Config.model_fields))
    said = error["msg"].removeprefix("Input ").replace("valid integer", "whole number").replace("valid ", "")
    said = said.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    said = said.replace("greater than", "above").replace("less than", "below")
    return ConfigError(f"{shown(path, value)} {said}")
