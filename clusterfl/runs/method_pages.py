"""What a method's page says out of the code itself: what leaves a client, and the cost of a round."""

from __future__ import annotations

from typing import Any

from clusterfl.message import Kept
from clusterfl.method import Method, exchanged
from clusterfl.methods import METHODS
from clusterfl.parts.describe import Describe
from clusterfl.runs.costs import sentence


def leaves(method: Method[Any]) -> str:
    """What each procedure sends, as it is declared, in Markdown (with the default base, where there is one)."""
    lines = ["| procedure | what leaves the client |", "|---|---|"]
    for procedure, fields in exchanged(method).items():
        sent = [f"{kind} (`{field}`)" for field, kind in fields.items() if not isinstance(kind, Kept)]
        if sent:
            lines.append(f"| `{procedure}` | {', '.join(sent)} |")
    if len(lines) == 2:
        return "No procedure sends anything."
    only = (
        '\n\n`Describe` runs with `start = "kin"` alone.'
        if "start" in method.hyper() and Describe in method.runs
        else ""
    )
    return "\n".join(lines) + only


def generated(name: str) -> list[str]:
    """The parts of docs/methods/NAME.md that have to be in it word by word."""
    return [leaves(METHODS[name]()), sentence(name)]


def server_sees() -> str:
    """What leaves a client and what stays on it, method by method, in Markdown: the table of docs/deployment.md."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, cls in METHODS.items():
        method = cls()
        sent: dict[str, None] = {}
        stays: dict[str, None] = {}
        for procedure, fields in exchanged(method).items():
            of, _, what = procedure.partition(".")
            if what == "personalise" or (of == Describe.__name__ and "start" in method.hyper()):
                continue  # a model for its own use; statistics for start = "kin" alone
            for kind in fields.values():
                (stays if isinstance(kind, Kept) else sent)[str(kind)] = None
        rows.setdefault(("; ".join(sent) or "nothing", "; ".join(stays)), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {sent} | {stays} |" for (sent, stays), names in rows.items()]
    return "\n".join(["| method | leaves the node | stays on it |", "|---|---|---|", *lines])
