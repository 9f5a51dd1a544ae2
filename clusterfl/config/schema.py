"""One typed config: everything that decides a run."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor

from clusterfl import keys
from clusterfl.config import tables
from clusterfl.config.errors import UnknownKey, naming, sentence, unknown
from clusterfl.config.methods import check_k, find_method, named_settings, read_method, switched, write_method
from clusterfl.config.overrides import DEMO, changes_of, merged, put, read_toml
from clusterfl.config.presets import DEFAULT, below_preset, local_of_preset
from clusterfl.config.suited import suited
from clusterfl.config.tables import Table, as_table
from clusterfl.config.task import TaskConfig
from clusterfl.data.config import GIVEN, DataConfig
from clusterfl.data.population import Population
from clusterfl.data.registry import is_own
from clusterfl.data.scenario import build
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.device import check_device
from clusterfl.engines.wrappers.attack import AttackConfig, attackers, flip_labels
from clusterfl.engines.wrappers.privacy import PrivacyConfig
from clusterfl.errors import ConfigError
from clusterfl.fields import at_least, option
from clusterfl.method import Method, check_targets
from clusterfl.models import MODELS, find_model
from clusterfl.outside import reference_of
from clusterfl.parts.local import SGD
from clusterfl.record import check_eval_clients


@dataclass(frozen=True)
class CheckpointConfig:
    """The ``[checkpoint]`` table."""

    every: int = option(1, "rounds between checkpoints; 0: none")
    keep: int = option(2, "how many stay")

    def __post_init__(self) -> None:
        at_least(0, self, "every")
        if self.keep < 2:
            raise ValueError(f"keep={self.keep} should be at least 2: a damaged one needs one before it")


@dataclass(frozen=True)
class ModelConfig:
    """The ``[model]`` table: a name, and that model's own parameters."""

    name: str = "mclr"
    params: Table = field(default_factory=dict)

    @staticmethod
    def read(table: Mapping[str, Any]) -> ModelConfig:
        given = dict(table)
        name = given.pop("name", ModelConfig.name)
        if name == GIVEN:
            return ModelConfig(GIVEN, given)
        entry = find_model(name) if isinstance(name, str) else None
        if entry is None:
            raise unknown("model.name", name, MODELS, "a known model")
        hints, params = tables.hints_of(entry.builder), dict(entry.params)
        for key, value in given.items():
            if key not in params:
                raise UnknownKey("model", key, value, ["name", *params])
            params[key] = tables.value_of(hints[key], value, f"model.{key}")
        return ModelConfig(reference_of(entry.builder) or name, params)

    def write(self) -> Table:
        return {"name": self.name, **tables.plain(self.params)}


class Config(BaseModel):
    """Everything that decides a run. Equal configs give equal results, bit for bit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    seed: int = Field(0, ge=0, lt=2**63, description="of the data, the start, the sampling and the training")
    rounds: int = Field(20, ge=1, description="communication rounds")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients asked in a round")
    eval_every: int = Field(1, ge=1, description="rounds between measurements; the last round is always measured")
    eval_clients: int | float | None = Field(None, description="clients that are measured, or their share; unset: all")
    eval_inter: bool = Field(False, description="each measurement also tries cluster models on the other clusters")
    device: str = Field("cpu", description="where clients compute, as PyTorch calls it")
    data: InstanceOf[DataConfig] = Field(default_factory=DataConfig)
    model: InstanceOf[ModelConfig] = Field(default_factory=lambda: ModelConfig.read({}))
    task: InstanceOf[TaskConfig] = Field(default_factory=TaskConfig)
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
        changes = changes_of(overrides)
        if seed is not None:
            changes["seed"] = seed
        if data_root is not None:
            put(changes, ["data", "root"], str(data_root))
        source = changes.get("data", {}).get("source") if isinstance(changes.get("data"), dict) else None
        if path is None and isinstance(source, str) and is_own(source):
            table["data"] = {}  # the demo's clients, clusters and rotations are not those of own data
        for kind, default in (("method", DEFAULT), ("model", ModelConfig.name)):
            before, chosen = table.get(kind), changes.get(kind)
            name = chosen.get("name") if isinstance(chosen, dict) else None
            if isinstance(name, str) and name != (before.get("name", default) if isinstance(before, dict) else default):
                # the file's parameters were another's
                table[kind] = switched(table, name) if kind == "method" else {"name": name}
        return Config.parse(suited(merged(below_preset(table, changes), changes), changes, demo=path is None))

    @staticmethod
    def parse(table: Mapping[str, Any]) -> Config:
        """The config of a nested table; ConfigError, in one sentence, for the first thing that is wrong."""
        try:
            return Config(**table)
        except UnknownKey as e:
            raise e.elsewhere(known_keys()) from None
        except ValidationError as e:
            error = e.errors()[0]
            if error["type"] == "extra_forbidden":
                path = ".".join(str(part) for part in error["loc"])
                unknown = UnknownKey("", path, error["input"], Config.model_fields)
                raise unknown.elsewhere(known_keys()) from None
            raise ConfigError(sentence(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _train_by_preset(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("local", {}), dict):
            local = local_of_preset(table.get("method", {}), table.get("local", {}))
            return {**table, "local": local} if local else table
        return table

    @field_validator("data", "task", "local", "engine", "model", "checkpoint", "attack", "privacy", mode="before")
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
            find_method(name, "methods")
            read_method({**as_table(table, f"methods.{name}"), "name": name}, f"methods.{name}", SGD())
        return value

    @field_validator("eval_clients", mode="before")
    @classmethod
    def _check_eval_clients(cls, value: Any) -> Any:
        try:
            check_eval_clients(value)
        except ValueError as e:
            raise ConfigError(str(e)) from None
        return value

    def model_post_init(self, context: Any) -> None:
        check_device(self.device)
        if self.data.clients:
            check_k(self.method, self.data.clients)
        with naming("method"):
            check_targets(self.method, regression=self.task.regression)

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
        more: Table = {"eval_inter": True} if self.eval_inter else {}
        more |= {} if self.eval_clients is None else {"eval_clients": self.eval_clients}
        # left out as it is by default: configs of before there was a choice keep their digests
        more |= {} if self.task == TaskConfig() else {"task": tables.write(self.task)}
        return {**written, **more, **({"methods": self.methods} if self.methods else {})}

    def toml(self) -> str:
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """SHA-256 of what a resumed run may not change: all but its length and how it is carried out."""
        fixed = {k: v for k, v in self.table().items() if k not in ("rounds", "checkpoint", "methods")}
        fixed["engine"] = {k: v for k, v in fixed["engine"].items() if k not in ("workers", "address")}
        return hashlib.sha256(tomli_w.dumps(fixed).encode()).hexdigest()

    # -- variations and the run ----------------------------------------------------------------------

    def with_method(self, name: str) -> Config:
        """The same run with another method: its ``[methods.name]`` table, and this one's ``k`` if it has a k.

        ``name@paper`` is the method with its paper's settings; local training stays the same for all.
        """
        if name == self.method.name:
            return self
        return Config.parse({**self.table(), "method": switched(self.table(), name)})

    def variant(self, text: str) -> Config:
        """The same run with another method, by its name and perhaps settings of its own: ``ifca:k=3``."""
        name, settings = named_settings(text)
        changes = changes_of(settings)
        preset = changes.pop("preset", None)  # below what is set beside it, not on top of all that is written out
        config = self.with_method(name if preset is None else f"{name}@{preset}")
        return Config.parse(merged(config.table(), {"method": changes})) if changes else config

    def with_seed(self, seed: int) -> Config:
        return Config.parse({**self.table(), "seed": seed})

    # -- the clients that it describes ---------------------------------------------------------------

    def population(self) -> Population:
        """The clients and their data; attackers who flip labels have flipped them."""
        if self.data.source == GIVEN:
            raise ConfigError(
                "data.source='given' should be a source: the clients of this run came from Python, and are needed there"
            )
        with naming("data"):
            made = build(self.data, keys.fold_in(keys.key(self.seed), "data"), regression=self.task.regression)
        return flip_labels(made, self.attackers(made)) if self.attack.kind == "label-flip" else made

    def attackers(self, population: Population) -> Tensor:
        """The ids of the clients that lie."""
        with naming("attack"):
            return attackers(self.attack, population, keys.fold_in(keys.key(self.seed), "attack"))


def known_keys() -> dict[str, str]:
    """Every key's last part and its dotted path; keys of methods and models count only where they apply."""
    places = {f.name: f"{table}.{f.name}" for table, cls in _TABLES.items() for f in dataclasses.fields(cls)}
    places.pop("name", None)
    return places | {"k": "method.k", "start": "method.start"} | {name: name for name in Config.model_fields}


_TABLES: dict[str, Any] = {
    "attack": AttackConfig,
    "privacy": PrivacyConfig,
    "engine": EngineConfig,
    "data": DataConfig,
    "task": TaskConfig,
    "local": SGD,
    "checkpoint": CheckpointConfig,
}
