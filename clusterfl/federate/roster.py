"""Who belongs to a federation: nodes get their keys and folders, come later, are refused and come back."""

from __future__ import annotations

import shlex
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from clusterfl.errors import ConfigError, suggestion
from clusterfl.federate.certificates import make_node_key, make_own
from clusterfl.federate.folder import Federation, check_name
from clusterfl.runs.files import write_whole

NODE = """#!/bin/sh
# Starts this node: ./start.sh --data my-data.npz (or .csv, .parquet, a folder, mine.py:function)
cd "$(dirname "$0")" && exec clusterfl federate node . {arguments} "$@"
"""


def add_node(federation: Federation, name: str) -> None:
    """What a new node is handed: its key, the authority's certificate, its start script."""
    check_name(name)
    home = federation.node(name)
    home.mkdir(parents=True, mode=0o700)
    if not federation.insecure:
        make_node_key(home / "key", federation.public_key(name))
        make_own(home / "own.crt", home / "own.key")
        write_whole(home / "ca.crt", federation.authority[0].read_bytes())
    write_script(
        home / "start.sh", NODE.format(arguments=" ".join(map(shlex.quote, _node_arguments(federation, name))))
    )


def _node_arguments(federation: Federation, name: str) -> list[str]:
    return ["--name", name, "--server", federation.address, *(["--insecure"] if federation.insecure else [])]


def write_script(path: Path, text: str) -> None:
    write_whole(path, text.encode())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def with_node(federation: Federation, name: str) -> Federation:
    """The federation with a new node at the end, so that nobody's number changes; one that was revoked comes back."""
    if name in federation.nodes and name not in federation.revoked:
        raise ConfigError(f"node={name!r} should be a new name; to replace its key, revoke it first")
    if name in federation.revoked:
        grown = replace(federation, revoked=tuple(n for n in federation.revoked if n != name))
        shutil.rmtree(federation.node(name), ignore_errors=True)
        federation.public_key(name).unlink(missing_ok=True)
    else:
        grown = replace(federation, nodes=(*federation.nodes, name))
    grown.check()
    add_node(grown, name)
    grown.write()
    return grown


def without_node(federation: Federation, name: str) -> Federation:
    """The federation with a node's key refused; the node's number stays its own."""
    if name not in federation.nodes:
        raise ConfigError(f"node={name!r} should be one of the federation's{suggestion(name, federation.nodes)}")
    if federation.insecure:
        raise ConfigError("an insecure federation should be made anew: it has no keys to refuse")
    smaller = replace(federation, revoked=tuple(dict.fromkeys([*federation.revoked, name])))
    smaller.write()
    return smaller
