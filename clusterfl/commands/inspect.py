"""``clusterfl inspect``: what a scenario gives each client, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterfl.commands.common import (
    ConfigFile,
    DataRoot,
    Json,
    Set,
    Verbose,
    letter,
    look_lines,
    say_json,
    set_logging,
)
from clusterfl.errors import ConfigError

SHOWN = 40  # clients in the printed table


def register(app: typer.Typer) -> None:
    app.command()(inspect)


def inspect(
    config: ConfigFile = None,
    set_: Set = [],  # noqa: B006 (typer reads it)
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed (over the config's).")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.png", help="Draw the mix of labels by client.")
    ] = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Do they form groups? Told by evidence, before any training.")
    ] = False,
    data_root: DataRoot = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Show the clients of a scenario: sizes, labels, true clusters.

    With --groups every client describes its data once, as in the method kin, and the answer is how many groups there
    are, how sure that is, which classes differ and who may belong to several. [method] says how, if it is kin.

    \b
    Examples:
      clusterfl inspect
      clusterfl inspect scenario.toml --picture labels.png
      clusterfl inspect scenario.toml --groups
    """
    set_logging(verbose)
    if groups:
        if picture is not None:
            raise ConfigError(f"--picture {picture} should be left out with --groups, which draws nothing")
        show_groups(config, set_, seed, data_root, json=json)
        return
    from clusterfl.config import Config
    from clusterfl.data.overview import overview

    population = Config.load(config, set_, seed=seed, data_root=data_root).population()
    found = overview(population)
    if picture is not None:
        from clusterfl.report.labels import draw_labels

        draw_labels(population, picture)
    if json:
        say_json(found)
        return
    for line in lines(found):
        typer.echo(line)
    if picture is not None:
        typer.echo(f"drawn to {picture}")


def show_groups(config: Path | None, set_: list[str], seed: int | None, data_root: Path | None, *, json: bool) -> None:
    from clusterfl.config import Config
    from clusterfl.methods.kin import Kin
    from clusterfl.runs.groups import diagnose
    from clusterfl.runs.setup import prepare

    chosen = Config.load(config, set_, seed=seed, data_root=data_root)
    method = chosen.method if isinstance(chosen.method, Kin) else Kin()
    setup = prepare(chosen.model_copy(update={"method": method}), look=True)
    with setup.engine() as engine:
        found = diagnose(engine, method, setup.key_of_a_look("groups")).json(setup.population)
    if json:
        say_json(found)
        return
    for line in group_lines(found):
        typer.echo(line)


def group_lines(found: dict[str, Any]) -> list[str]:
    k, clients = found["groups"], sum(map(len, found["members"]))
    told = "they form one group" if k == 1 else f"they form {k} groups"
    out = [f"{clients} clients, {found['bytes_up']:,} bytes from each, {found['seconds']:.1f} s: {told}"]
    if k > 1:
        out[0] += f"; the nearest two are two by {found['sure']:.0f} nats"
    for g, members in enumerate(found["members"]):
        more = f" … and {len(members) - SHOWN} more" if len(members) > SHOWN else ""
        out.append(f"  {letter(g)}: {len(members)} clients: {' '.join(members[:SHOWN])}{more}")
    for pair in found["differ"][:SHOWN]:
        a, b = map(letter, pair["groups"])
        classes = " ".join(pair["classes"]) or "none by itself"
        out.append(f"  {a} and {b}: two by {pair['nats']:.0f} nats; classes that look different: {classes}")
    if found["either"]:
        either = [f"{i} ({' or '.join(map(letter, gs))})" for i, gs in found["either"].items()]
        out.append(f"  may belong to several: {', '.join(either[:SHOWN])}")
    if found["ari"] is not None:
        out.append(f"  against the true clusters: ARI {found['ari']:.2f}; at best {found['oracle_ari']:.2f}")
    return out + look_lines(found["privacy"])


def lines(found: dict[str, Any]) -> list[str]:
    shape = "x".join(map(str, found["input_shape"]))
    rows, numbers = found["per_client"], not found["classes"]
    sizes = sorted(r["train"] for r in rows)
    out = [
        f"{found['data']}: {found['clients']} clients that train, {found['unseen']} unseen, "
        f"{'targets are numbers' if numbers else str(found['classes']) + ' classes'}, samples of {shape}",
        f"train samples per client: {sizes[0]} to {sizes[-1]}, median {sizes[len(sizes) // 2]}; "
        f"true clusters: {found['true_clusters'] or 'not known'}{' (main group only)' if found['soft_truth'] else ''}",
        *(f"note: {n}" for n in found["notes"]),
        *([f"features: {', '.join(found['feature_names'])}"] if found["feature_names"] else []),
        *([f"classes: {', '.join(found['class_names'])}"] if found["class_names"] else []),
    ]
    wide = max(6, *(len(r["client"]) for r in rows[:SHOWN]))
    what = "targets (mean ± std)" if numbers else "labels (share of each class in tenths, 0-9; . is none)"
    head = f"  train   test  cluster  {what}"
    out.append("client".ljust(wide) + head)
    for r in rows[:SHOWN]:
        cluster = "-" if r["true_cluster"] is None else letter(r["true_cluster"])
        mark = " unseen" if r["unseen"] else ""
        labels = f"{r['target_mean']:.3g} ± {r['target_std']:.3g}" if numbers else mix(r["labels"])
        out.append(f"{r['client']:<{wide}s} {r['train']:6d} {r['test']:6d}  {cluster:>7s}  {labels}{mark}")
    if len(rows) > SHOWN:
        out.append(f"… and {len(rows) - SHOWN} more (--json shows all)")
    return out


def mix(counts: list[int]) -> str:
    """One character per class: its share of the client's samples in tenths."""
    total = max(sum(counts), 1)
    return "".join("." if c == 0 else str(min(int(10 * c / total), 9)) for c in counts)
