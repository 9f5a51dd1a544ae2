"""``clusterfl federate``, after training: models in service, and nodes that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import Verbose, set_logging
from clusterfl.commands.federate import Folder, federate, read_federation


@federate.command()
def publish(
    folder: Folder,
    round: Annotated[int | None, typer.Option("--round", metavar="R", help="Without it: the newest.")] = None,
    margin: Annotated[float, typer.Option("--margin", help="How much worse a version may be, in accuracy.")] = 0.01,
    verbose: Verbose = 0,
) -> None:
    """Put a round's models into service, each only if it is not worse on the nodes' own held-out data."""
    set_logging(verbose)
    _attend(folder, "publish", round=-1 if round is None else round, margin=margin)


@federate.command()
def rollback(
    folder: Folder,
    cluster: Annotated[int, typer.Option("--cluster", metavar="K", help="Whose model.")],
    verbose: Verbose = 0,
) -> None:
    """Go back to the version of a cluster's model before the current one."""
    set_logging(verbose)
    _attend(folder, "rollback", cluster=cluster)


@federate.command()
def deliver(folder: Folder, verbose: Verbose = 0) -> None:
    """Hand every node the version that is current in its cluster; some may have been away when it was published."""
    set_logging(verbose)
    _attend(folder, "deliver")


@federate.command()
def admit(
    folder: Folder,
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="The newcomer, which is connected.")],
    verbose: Verbose = 0,
) -> None:
    """Give a node that was not in training its cluster and the model in service there, without a training round."""
    set_logging(verbose)
    _attend(folder, "admit", node=node)


@federate.command()
def add(folder: Folder, node: Annotated[str, typer.Option("--node", metavar="NAME", help="Its name.")]) -> None:
    """Make a key and a folder for a new node, or anew for one that was revoked, and make it known to the server."""
    from clusterfl.federate import start
    from clusterfl.federate.roster import with_node

    grown = with_node(read_federation(folder), node)
    with start.server_up(grown):
        typer.echo(f"written to {grown.node(node)}; hand it to the node's operator")


@federate.command()
def revoke(folder: Folder, node: Annotated[str, typer.Option("--node", metavar="NAME", help="Whose key.")]) -> None:
    """Make the server refuse a node's key from now on; `federate add` makes it a new one under the same name."""
    from clusterfl.federate import control, start
    from clusterfl.federate.roster import without_node

    federation = without_node(read_federation(folder), node)
    with start.server_up(federation):
        control.unregister(federation, node)
    typer.echo(f"{node} is refused from now on")


def _attend(folder: Path, task: str, **settings: Any) -> None:
    from clusterfl.federate import start

    for line in start.attend(read_federation(folder), task, **settings):
        typer.echo(line)
