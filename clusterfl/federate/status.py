"""How a federation stands: its nodes by name, and what runs."""

from __future__ import annotations

import datetime
from typing import Any

from clusterfl.federate import processes
from clusterfl.federate.folder import Federation
from clusterfl.federate.server import read_nodes
from clusterfl.federate.start import state_of


def status_of(federation: Federation) -> dict[str, Any]:
    """What the server has written of its nodes, and which processes of this machine run."""
    known = read_nodes(federation.run_folder)
    seen, clusters = known.get("seen", {}), known.get("clusters", {})
    state = state_of(federation)
    running = [p.role for p in processes.noted(federation)]
    return {
        "address": federation.address,
        "secure": not federation.insecure,
        "server": "up" if "server" in running else "down",
        "run": state.get("state", "none"),
        "error": state.get("error") or None,
        "round": known.get("round"),
        "nodes": [
            {
                "name": name,
                "cluster": clusters.get(name),
                "last_seen": seen.get(name, {}).get("last"),
                "rounds": seen.get(name, {}).get("rounds", 0),
                "rejected": seen.get(name, {}).get("rejected", 0),
                "failed": seen.get(name, {}).get("failed", 0),
                "reason": seen.get(name, {}).get("reason", ""),
            }
            for name in federation.nodes
        ],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    wide = max(len(node["name"]) for node in found["nodes"])
    head = f"server {found['server']} at {found['address']}, run: {found['run']}"
    head += "" if found["round"] is None else f", round {found['round']}"
    out = [head, *([f"error: {found['error']}"] if found["error"] else [])]
    out.append(f"{'node':<{wide}}  cluster  rounds  rejected  failed  last seen")
    for node in found["nodes"]:
        cluster = "-" if node["cluster"] is None else str(node["cluster"])
        out.append(
            f"{node['name']:<{wide}}  {cluster:>7}  {node['rounds']:>6}  {node['rejected']:>8}  {node['failed']:>6}  "
            f"{_when(node['last_seen'])}" + (f"  ({node['reason']})" if node["reason"] else "")
        )
    return out


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
