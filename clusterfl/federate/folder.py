"""A federation's folder: who belongs to it, where its server is, and where things are."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from clusterfl.config import Config
from clusterfl.config.tables import read
from clusterfl.engines.flower.engine import Terms
from clusterfl.errors import ConfigError
from clusterfl.federate.certificates import public_pem
from clusterfl.runs.files import write_whole

FILE = "federation.toml"
FOLDER = "CLUSTERFL_FEDERATION"  # in the server's environment: nodes are told nothing of its paths
SINCE = "CLUSTERFL_SINCE"  # there too: when the server began, in seconds since 1970
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Federation:
    """What ``federation.toml`` says."""

    folder: Path
    nodes: tuple[str, ...]
    host: str = "127.0.0.1"  # by which nodes reach the server
    port: int = 9092
    insecure: bool = False
    demo: bool = False  # nodes hold the config's own population, node i its client i
    run: str = "run"  # the run's folder, beside this file
    revoked: tuple[str, ...] = ()  # nodes whose keys are refused
    classes: tuple[str, ...] = ()  # all that there are; unset: those that nodes name at the start
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the same of tables' columns of words
    public: str = ""  # a file beside this one, of samples that are nobody's secret, for methods that need them
    terms: Terms = field(default_factory=Terms)

    @staticmethod
    def read(folder: Path) -> Federation:
        path = folder / FILE
        if not path.exists():
            raise ConfigError(f"{folder} should be a federation's folder; make one with `clusterfl federate init`")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path} should be TOML, but: {e}") from None
        terms = read(Terms, table.pop("terms", {}), "terms")
        given = {"folder": folder.resolve(), "terms": terms}
        found = read(Federation, table, "", given=given)
        found.check()
        return found

    def check(self) -> None:
        """Raises where the federation cannot be."""
        for name in self.nodes:
            check_name(name)
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ConfigError(f"nodes={list(self.nodes)} should be different names, at least one")
        if self.insecure and not loopback(self.host):
            raise ConfigError(f"insecure=true should be used on loopback only, not with host={self.host!r}")
        if self.terms.least > len(self.nodes):
            raise ConfigError(f"terms.least={self.terms.least} should be at most the {len(self.nodes)} nodes")

    def write(self) -> None:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("folder", "terms")}
        table: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in kept.items()}
        table["terms"] = {f.name: getattr(self.terms, f.name) for f in fields(self.terms)}
        write_whole(self.folder / FILE, tomli_w.dumps(table).encode())

    # -- where things are ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def run_folder(self) -> Path:
        return (self.folder / self.run).resolve()

    @property
    def run_log(self) -> Path:
        return self.folder / "server" / "run.log"

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def authority(self) -> tuple[Path, Path]:
        return self.folder / "server" / "ca.crt", self.folder / "server" / "ca.key"

    @property
    def certificate(self) -> tuple[Path, Path]:
        return self.folder / "server" / "server.crt", self.folder / "server" / "server.key"

    def trained(self, config: Config) -> tuple[str, ...]:
        """The nodes that take part in training; those after them have come later and are admitted."""
        return self.nodes[: config.data.clients]

    def node(self, name: str) -> Path:
        """The folder that node's operator is handed."""
        return self.folder / "nodes" / name

    def public_key(self, name: str) -> Path:
        return self.folder / "server" / "keys" / f"{name}.pub"

    def public_keys(self) -> dict[str, bytes]:
        """What tells a name's owner from somebody who has taken the name."""
        return {name: public_pem(self.public_key(name)) for name in self.welcome}

    @property
    def welcome(self) -> tuple[str, ...]:
        """The nodes that may connect."""
        return tuple(name for name in self.nodes if name not in self.revoked)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"node={name!r} should be letters, digits, '.', '_' and '-' only")


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
