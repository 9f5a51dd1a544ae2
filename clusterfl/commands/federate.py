"""``clusterfl federate``: the same run on real nodes, by Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Force,
    Json,
    Quiet,
    Report,
    Set,
    Verbose,
    check_report,
    draw,
    say_json,
    say_report,
    set_logging,
)

if TYPE_CHECKING:
    from clusterfl.federate.folder import Federation

MOST_NODES = 10_000  # each gets a key and a folder of its own
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption, no node keys; on loopback only.")]
Timeout = Annotated[float | None, typer.Option("--timeout", metavar="S", help="Seconds that nodes have to answer.")]
Least = Annotated[int | None, typer.Option("--least", metavar="N", help="Replies that a round needs.")]

federate = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a config on real nodes: separate processes or machines, over TLS.",
)


def register(app: typer.Typer) -> None:
    app.add_typer(federate, name="federate")


@federate.command()
def init(
    folder: Folder,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG.toml", help="Without it: the demo scenario.")
    ] = None,
    node: Annotated[list[str], typer.Option("--node", metavar="NAME", help="A node's name; once for each.")] = [],  # noqa: B006
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="Or so many, node-0 to node-N-1.")] = None,
    host: Annotated[str, typer.Option("--host", help="Name or address by which nodes reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The server's port.")] = 9092,
    demo: Annotated[bool, typer.Option("--demo", help="Nodes hold the config's own data, not theirs.")] = False,
    insecure: Insecure = False,
    timeout: Timeout = None,
    least: Least = None,
    set_: Set = [],  # noqa: B006
    data_root: DataRoot = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a federation's folder: certificates, node keys, start scripts and a page for its operator.

    \b
    Examples:
      clusterfl federate init flowers --config scenario.toml --node rome --node oslo --host fl.example.org
      clusterfl federate init demo --nodes 4 --demo
    """
    set_logging(verbose, quiet)
    from clusterfl.config import Config
    from clusterfl.errors import ConfigError
    from clusterfl.federate.folder import Federation
    from clusterfl.federate.init import init as write

    if bool(node) == (nodes is not None):
        raise ConfigError("--node NAME (once for each) or --nodes N should be given, and not both")
    if nodes is not None and not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"--nodes {nodes} should be at least 1 and at most {MOST_NODES:,}")
    names = tuple(node) or tuple(f"node-{i}" for i in range(nodes or 0))
    chosen = Config.load(config, set_, data_root=data_root)
    folder.mkdir(parents=True, exist_ok=True)
    made = Federation(
        folder.resolve(), names, host, port, insecure=insecure, demo=demo, terms=_terms(timeout, least, len(names))
    )
    write(made, chosen)
    if not demo and not quiet:
        typer.echo(
            f"data.source={chosen.data.source!r} is not used: nodes bring their own data (--demo uses it)", err=True
        )
    typer.echo(f"written to {folder}: {len(names)} nodes of {made.address}; README.md says how to go on")


@federate.command()
def local(
    config: ConfigFile = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="How many; each holds one client.")] = 4,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run's folder.")] = None,
    set_: Set = [],  # noqa: B006
    insecure: Insecure = False,
    timeout: Timeout = None,
    least: Least = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    force: Force = False,
    report: Report = False,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Bring up a server and nodes on this machine as real processes, run, and take all down again.

    Node i holds client i of the config's own data (data.clients is the number of nodes), so that the run can be
    compared with the simulation. The folder is a run's folder like any other.

    \b
    Examples:
      clusterfl federate local --nodes 4 --out runs/on-nodes
      clusterfl federate local scenario.toml --nodes 4 --set rounds=3
    """
    set_logging(verbose, quiet)
    from clusterfl.commands.common import default_out
    from clusterfl.config import Config
    from clusterfl.federate import start

    if report:
        check_report()
    chosen = Config.load(config, [*set_, f"data.clients={nodes}", "data.unseen=0"], data_root=data_root)
    given = Config.load(config, set_, data_root=data_root).data if not quiet else chosen.data
    if (given.clients, given.unseen) != (nodes, 0):
        typer.echo(
            f"data.clients={given.clients}, data.unseen={given.unseen}: here {nodes} and 0, one per node", err=True
        )
    folder = out or default_out(chosen).with_name(default_out(chosen).name + "-nodes")
    with _shown(chosen, quiet) as told:
        terms = _terms(timeout, least, nodes)
        start.local(chosen, folder, nodes, insecure=insecure, resume=resume, force=force, terms=terms, told=told)
    _say(folder, json, report)


@federate.command()
def run(
    folder: Folder,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    force: Force = False,
    report: Report = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Start the server, wait for the nodes, train and show how it goes. The server stays up until `federate stop`."""
    set_logging(verbose, quiet)
    from clusterfl.config import Config
    from clusterfl.federate import start

    if report:
        check_report()
    federation = read_federation(folder)
    with _shown(Config.load(federation.config), quiet) as told:
        start.run(federation, resume=resume, force=force, told=told)
    _say(federation.run_folder, json, report)


@federate.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder, as it was handed out.")],
    name: Annotated[str, typer.Option("--name", help="The node's registered name.")],
    server: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the server is.")],
    data: Annotated[str, typer.Option("--data", help="A .npz, .csv or .parquet file, a folder, or mine.py:function.")],
    config: Annotated[Path | None, typer.Option("--config", help="With --data list: the config.")] = None,
    index: Annotated[int, typer.Option("--index", help="With --data list: which of its clients.")] = 0,
    least: Annotated[int, typer.Option("--least", help="With fewer training samples the node declines.")] = 2,
    code: Annotated[
        list[str], typer.Option("--code", metavar="FILE.py:NAME", help="A method or model of your own to allow.")
    ] = [],  # noqa: B006
    insecure: Insecure = False,
) -> None:
    """Start a node in the foreground, on the machine that holds its data (its start.sh does it)."""
    from clusterfl.errors import ConfigError
    from clusterfl.federate.folder import loopback
    from clusterfl.federate.processes import live_as_node

    if insecure and not loopback(server.rpartition(":")[0].strip("[]")):
        raise ConfigError(f"--insecure should be used on loopback only, not with server={server!r}")
    home = folder.resolve()
    settings: dict[str, str | int] = {"name": name, "home": str(home), "least": least, "index": index}
    settings["data"] = _from_anywhere(data)
    if config is not None:
        settings["config"] = str(config.resolve())
    if code:
        settings["code"] = ",".join(code)
    raise typer.Exit(live_as_node(home, server, insecure=insecure, settings=settings) % 256)


@federate.command()
def status(folder: Folder, json: Json = False) -> None:
    """Show the nodes by name: cluster, when they last answered, rounds taken part in, rejected replies."""
    from clusterfl.federate.status import lines, status_of

    found = status_of(read_federation(folder))
    if json:
        say_json(found)
        return
    for line in lines(found):
        typer.echo(line)


@federate.command()
def stop(folder: Folder) -> None:
    """End the processes that were started from this folder, by their ids."""
    from clusterfl.federate.start import stop as end

    ended = end(read_federation(folder))
    typer.echo(", ".join(f"{p.role} ({p.pid})" for p in ended) + " ended" if ended else "nothing was running")


def read_federation(folder: Path) -> Federation:
    """A federation, or the one that `federate local` left in a run's folder."""
    from clusterfl.federate.folder import FILE, Federation

    inner = folder / "federation"
    return Federation.read(inner if (inner / FILE).exists() else folder)


def _from_anywhere(data: str) -> str:
    """What --data names, also from another folder than this one."""
    from clusterfl.outside import absolute, is_outside

    if is_outside(data):
        return absolute(data)
    path = Path(data).expanduser()
    return str(path.resolve()) if path.suffix in (".npz", ".csv", ".parquet") or path.is_dir() else data


def _terms(timeout: float | None, least: int | None, nodes: int) -> Any:
    from clusterfl.config.errors import naming
    from clusterfl.engines.flower.engine import Terms

    given = {"timeout": timeout, "least": least if least is not None else min(2, nodes)}
    with naming("terms"):
        return Terms(**{n: v for n, v in given.items() if v is not None})  # type: ignore[arg-type]


def _shown(config: Any, quiet: bool) -> Any:
    from contextlib import contextmanager

    from clusterfl.runs.progress import display

    @contextmanager
    def shown() -> Any:
        with display(quiet) as screen:
            screen.start(config.method.name, config.rounds)
            yield screen.update

    return shown()


def _say(folder: Path, json: bool, report: bool) -> None:
    from clusterfl.commands.run import check_learnt, in_words
    from clusterfl.runs.folder import summary_of

    summary = summary_of(folder)
    assert summary is not None, "a run that has ended has a summary"
    drawn = draw(folder) if report else None
    if json:
        say_json(summary)
        check_learnt(summary)
        return
    for line in in_words(summary):
        typer.echo(line)
    typer.echo(f"written to {folder}")
    say_report(drawn, folder)
    check_learnt(summary)
