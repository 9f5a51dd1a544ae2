"""Flower's own command line, several commands in one process: starting Python for each would take seconds.

``python -m clusterfl.federate.control '[["supernode", "register", …], ["run", …]]'`` prints a JSON list with the
output and the failure, if any, of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterfl.errors import ClusterflError
from clusterfl.federate.folder import Federation
from clusterfl.federate.processes import environment
from clusterfl.runs.files import write_whole

LINK = "server"  # the name of the connection in Flower's own config


def flwr(federation: Federation, *commands: Sequence[str]) -> list[str]:
    """What Flower's commands print; ClusterflError for the first that fails."""
    home = federation.folder / "server" / "flwr"
    home.mkdir(parents=True, exist_ok=True)
    _write_connection(federation, home)
    arguments = [sys.executable, "-m", __name__, json.dumps([list(c) for c in commands])]
    done = subprocess.run(arguments, env=environment(home), capture_output=True, text=True, check=False)
    try:
        results = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise ClusterflError(f"Flower's command line failed: {_last(done.stderr)}") from None
    for command, result in zip(commands, results, strict=True):
        if result["failed"]:
            raise ClusterflError(f"flwr {' '.join(command[:2])} failed: {_last(result['said'])}")
    return [result["said"] for result in results]


def register(federation: Federation, names: Sequence[str]) -> None:
    """Makes nodes known to the server by their keys and names; those that it knows already stay as they are."""
    if federation.insecure:
        return
    known = registered(federation)
    missing = [name for name in names if name not in known]
    commands = [["supernode", "register", str(federation.public_key(n)), LINK, "--name", n] for n in missing]
    for name, said in zip(missing, flwr(federation, *commands) if commands else [], strict=True):
        found = re.search(r"SuperNode (\d+) registered", said)
        if found is None:
            raise ClusterflError(f"node {name!r} could not be registered: {_last(said)}")
        known[name] = found[1]
    _note(federation, known)


def unregister(federation: Federation, name: str) -> None:
    """The server knows the node no more, and refuses it from now on."""
    known = registered(federation)
    if name in known:
        flwr(federation, ["supernode", "unregister", known.pop(name), LINK])
        _note(federation, known)


def registered(federation: Federation) -> dict[str, str]:
    """Flower's ids of the nodes that the server's database knows, by name."""
    path = federation.folder / "server" / "registered.json"
    if not path.exists() or not (federation.folder / "server" / "state.db").exists():
        return {}
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _note(federation: Federation, known: dict[str, str]) -> None:
    write_whole(federation.folder / "server" / "registered.json", (json.dumps(known, indent=2) + "\n").encode())


def submit(federation: Federation, **settings: bool | str | float) -> None:
    """Hands the app to the server, which starts it."""
    given = " ".join(f"{n}={json.dumps(v)}" for n, v in settings.items())
    flwr(federation, ["run", str(federation.app), LINK, "-c", given])


def _write_connection(federation: Federation, home: Path) -> None:
    trust = (
        "insecure = true" if federation.insecure else f"root-certificates = {json.dumps(str(federation.authority[0]))}"
    )
    text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{federation.address}"\n{trust}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def _last(said: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    lines = [line.strip(" │╭╰─╮╯") for line in plain.splitlines()]
    return " ".join([line for line in lines if line][-3:])


def main() -> None:
    from flwr.cli.app import app

    results = []
    for command in json.loads(sys.argv[1]):
        said, failed = io.StringIO(), False
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                app(command, standalone_mode=False)
            except SystemExit as e:
                failed = bool(e.code)
            except Exception as e:
                said.write(f"\n{type(e).__name__}: {getattr(e, 'message', e)}")
                failed = True
        results.append({"said": said.getvalue(), "failed": failed})
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
