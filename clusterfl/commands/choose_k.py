"""``clusterfl choose-k``: how many clusters the clients of a scenario form."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Json,
    Quiet,
    Set,
    Verbose,
    look_lines,
    say_json,
    set_logging,
)
from clusterfl.commands.compare import parse_seeds
from clusterfl.errors import ConfigError

if TYPE_CHECKING:
    from clusterfl.config import Config
    from clusterfl.runs.setup import Setup


def register(app: typer.Typer) -> None:
    app.command("choose-k")(choose_k)


def choose_k(
    config: ConfigFile = None,
    k: Annotated[
        str | None, typer.Option("--k", metavar="1-8", help="Numbers of clusters to look at (default 1-8).")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=2, help="Look at so many clients at most (default 60).")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", min=2, help="Local runs per client, at most (default 16).")
    ] = None,
    by: Annotated[
        Literal["stability", "fesem", "kin"],
        typer.Option(
            "--by", help="What decides: agreement of two halves, FeSEM's accuracy, or evidence without training."
        ),
    ] = "stability",
    criterion: Annotated[
        Literal["accuracy", "distance"],
        typer.Option("--criterion", help="With --by fesem: accuracy on held-out samples, or the elbow of distances."),
    ] = "accuracy",
    set_: Set = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed (over the config's).")] = None,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Recommend a number of clusters before any long training.

    A sample of clients trains one common net for a few local runs, on each half of its data. The largest
    number of clusters on which both halves agree is recommended. With --by fesem, as FeSEM's paper has it, FeSEM runs
    for three rounds with each number, and the best on held-out training samples is, or the elbow of distances within
    clusters (--criterion distance). With --by kin nothing is trained:
    clients describe their data once, and the evidence says how many groups there are (see also inspect --groups).

    \b
    Examples:
      clusterfl choose-k
      clusterfl choose-k scenario.toml --k 1-6 --json
      clusterfl choose-k scenario.toml --by kin
    """
    set_logging(verbose, quiet)
    from clusterfl.config import Config
    from clusterfl.runs.choose_k import choose_k as choose
    from clusterfl.runs.setup import prepare

    if by == "kin":
        for name, given in (("--k", k), ("--sample", sample), ("--most", most)):
            if given is not None:
                raise ConfigError(f"{name} {given} should be left out with --by kin, which finds the number itself")
        choose_by_kin(Config.load(config, [*set_, "method.name=kin"], seed=seed, data_root=data_root), json=json)
        return
    k, sample, most = k or "1-8", sample or 60, most or 16
    wanted = parse_seeds(k)
    if min(wanted) < 1:
        raise ConfigError(f"--k {k!r} should start at 1 or more")
    chosen = Config.load(config, [*set_, "method.name=fedavg"], seed=seed, data_root=data_root)
    setup = prepare(chosen)
    clients = min(sample, setup.population.clients)
    if max(wanted) > clients:
        raise ConfigError(f"--k {k!r} should not go beyond the {clients} clients that are looked at")
    if by == "fesem":
        by_fesem(setup, wanted, sample, criterion, json)
        return
    if criterion != "accuracy":
        raise ConfigError(f"--criterion {criterion} should be given with --by fesem")
    with setup.engine() as engine:
        advice = choose(engine, chosen.local, wanted, setup.key_of_a_look("choose-k", sample), sample=sample, most=most)
        spent = engine.spent()
    privacy = None if spent is None else asdict(spent)
    if json:
        say_json(
            {
                "k": advice.k,
                "reason": advice.reason,
                "clients": advice.clients,
                "runs": advice.runs,
                "views": [asdict(v) for v in advice.views],
                "privacy": privacy,
            }
        )
        return
    typer.echo("  k  stability  silhouette  inertia  eigengap")
    for v in advice.views:
        silhouette = "-" if v.silhouette is None else f"{v.silhouette:.3f}"
        gap = "-" if v.eigengap is None else f"{v.eigengap:.3f}"
        mark = "  <" if v.k == advice.k else ""
        typer.echo(f"{v.k:3d} {v.stability:10.2f} {silhouette:>11s} {v.inertia:8.3f} {gap:>9s}{mark}")
    typer.echo(f"k = {advice.k}: {advice.reason} ({advice.clients} clients, {advice.runs} local runs)")
    for text in look_lines(privacy):
        typer.echo(text)


def by_fesem(
    setup: Setup, wanted: list[int], sample: int, criterion: Literal["accuracy", "distance"], json: bool
) -> None:
    from dataclasses import replace

    from clusterfl.runs.choose_k_fesem import choose_by_fesem
    from clusterfl.scores import label

    config = setup.config
    if not config.privacy.measures:
        raise ConfigError("privacy.publish_metrics=false should be true with --by fesem, which goes by accuracies")
    if criterion == "distance" and len(set(wanted)) < 3:
        raise ConfigError("--k should be three numbers or more with --criterion distance: an elbow has two sides")
    seed = int(setup.key_of_a_look("choose-k", sample)) if config.privacy.on else config.seed
    found = choose_by_fesem(
        setup.population,
        lambda some: replace(setup, population=some).engine(),
        config.local,
        wanted,
        seed,
        sample=sample,
        criterion=criterion,
    )
    if json:
        say_json(asdict(found))
        return
    typer.echo(f"  k {label(found.metric):>9s}  distance")
    for t in found.trials:
        typer.echo(f"{t.k:3d} {t.score:9.3f} {t.distance:9.4f}{'  <' if t.k == found.k else ''}")
    typer.echo(f"k = {found.k}: {found.reason} ({found.clients} clients)")
    for text in look_lines(None if found.privacy is None else asdict(found.privacy)):
        typer.echo(text)


def choose_by_kin(config: Config, *, json: bool) -> None:
    from clusterfl.methods.kin import Kin
    from clusterfl.runs.groups import diagnose
    from clusterfl.runs.setup import prepare

    setup = prepare(config, look=True)
    with setup.engine() as engine:
        assert isinstance(config.method, Kin)
        found = diagnose(engine, config.method, setup.key_of_a_look("groups"))
    privacy = None if found.privacy is None else asdict(found.privacy)
    nats = "" if found.sure is None else f": the nearest two are two by {found.sure:.0f} nats"
    reason = f"so many groups look different class by class{nats}" if found.k > 1 else "no class looks different"
    if json:
        say_json({"k": found.k, "reason": reason, "clients": len(found.ids), "runs": 0, "privacy": privacy})
        return
    typer.echo(f"k = {found.k}: {reason} ({len(found.ids)} clients, nothing trained, {found.seconds:.1f} s)")
    for text in look_lines(privacy):
        typer.echo(text)
