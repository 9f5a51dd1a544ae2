"""The page of one run."""

from __future__ import annotations

import math
import shlex
from typing import Any

from clusterfl.report.clusters import (
    confusion_figures,
    cross_figure,
    flow_figure,
    label_figure,
    model_figures,
    together_figure,
)
from clusterfl.report.flow import letter
from clusterfl.report.learning import agreement_figure, cost_figures, loss_figure, metric_figures, trouble_figures
from clusterfl.report.method_pictures import method_figures
from clusterfl.report.parts import Column, Page, Section, Table, Tile
from clusterfl.report.runs import Run
from clusterfl.report.svg import Html, el, said


def page_of(run: Run, *, live: bool = False) -> Page:
    summary = run.summary
    rounds = f"{summary['rounds']} of {run.config.get('rounds', '?')}" if not run.finished else f"{summary['rounds']}"
    sections = [
        Section("Learning", [*metric_figures(run), *agreement_figure(run), *loss_figure(run)]),
        Section("Who is where", [*flow_figure(run), *cross_figure(run), *together_figure(run)]),
        Section("Inside the clusters", [*label_figure(run), *model_figures(run), *confusion_figures(run)]),
        Section(f"Inside {run.title}", method_figures(run)),
        Section("Cost", cost_figures(run)),
        Section("Guard, privacy and diagnostics", trouble_figures(run), below=privacy(summary)),
        Section("Clients", table=clients(run), lead="Every client by name: sort by a heading, search for any word."),
        Section("Again", below=again(run)),
    ]
    kept = [s for s in sections if s.figures or s.table or s.below]
    return Page(
        title=f"{run.title} on {summary.get('data') or 'own data'}",
        subtitle=f"{summary['clients']:,} clients, {rounds} rounds, seed {run.seed}",
        badges=badges(run),
        tiles=tiles(run),
        sections=kept,
        notes=remarks(run),
        live=int(summary["rounds"]) if live else None,
        made_by=made_by(run),
    )


def made_by(run: Run) -> str:
    import clusterfl

    ran = run.details.get("version")
    drawn = f"Drawn by clusterfl {clusterfl.__version__} from the run's folder; nothing is loaded from elsewhere."
    return f"Run with clusterfl {ran}. {drawn}" if ran else drawn


def badges(run: Run) -> list[str]:
    model = run.config.get("model", {}).get("name")
    local = run.config.get("local", {})
    found = [f"model {model}"] if model else []
    length = f"{local['epochs']} epochs" if local.get("epochs") is not None else f"{local.get('steps')} steps"
    if local:
        found.append(f"local: {length}, batch {local.get('batch')}, lr {local.get('lr')}")
    part = run.config.get("participation", 1.0)
    found.append("all clients each round" if part == 1.0 else f"{100 * part:g} % of the clients each round")
    if run.config.get("attack", {}).get("kind", "none") != "none":
        found.append(f"attack: {run.config['attack']['kind']}")
    return found


def remarks(run: Run) -> list[str]:
    notes = [str(n) for n in run.summary.get("notes", [])]
    if run.summary.get("soft_truth"):
        notes.append("The true cluster is only a client's main group: the ARI is a rough guide.")
    if not run.finished:
        notes.append("This run has not ended: the page shows it up to its last whole round.")
    return notes


def tiles(run: Run) -> list[Tile]:
    s, m = run.summary, run.metric
    spread = s.get(f"{m.name}_std")
    true = s.get("true_clusters")
    calm = "nobody moved" if s.get("settled") == 0 else "the last move of a client"
    candidates = [
        Tile(
            m.key,
            f"mean {m.name}",
            s.get(m.key),
            m.unit,
            f"± {said(spread, m.unit)} between clients" if spread is not None else "",
        ),
        Tile(f"{m.name}_bottom5", "five worst clients", s.get(f"{m.name}_bottom5"), m.unit),
        Tile("ari", "ARI", s.get("ari"), "index", "agreement with the truth"),
        Tile(
            "clusters_found",
            "clusters found",
            s.get("clusters_found"),
            "count",
            "truth unknown" if true is None else f"{true} true ones",
        ),
        Tile("settled", "settled in round", s.get("settled"), "count", calm),
        Tile(f"unseen_{m.name}", "unseen clients", s.get(f"unseen_{m.name}"), m.unit, f"{s.get('unseen')} newcomers"),
        Tile(
            f"global_{m.name}",
            "before personalisation",
            s.get(f"global_{m.name}") if run.details.get("personal") else None,
            m.unit,
        ),
        Tile(
            f"{m.name}_honest",
            "honest clients",
            s.get(f"{m.name}_honest") if s.get("attackers") else None,
            "share",
            f"{len(s.get('attackers') or [])} attackers",
        ),
        Tile("bytes_up", "sent up", s.get("bytes_up"), "bytes", "clients to server"),
        Tile("bytes_down", "sent down", s.get("bytes_down"), "bytes", "server to clients"),
        Tile("rejected", "rejected replies", s.get("rejected") or None, "count"),
        Tile("seconds", "time", s.get("seconds"), "seconds", "all rounds"),
    ]
    return [tile for tile in candidates if tile.value is not None]


def privacy(summary: dict[str, Any]) -> Html | None:
    spent = summary.get("privacy")
    if not spent:
        return None
    rows = [
        Html(el("dt", name.replace("_", " ")) + el("dd", said(v, "number") if isinstance(v, float) else v))
        for name, v in spent.items()
    ]
    return el("div", el("h3", "Privacy spent"), el("dl", Html("".join(rows))), class_="card below")


def clients(run: Run) -> Table:
    m = run.metric
    margin_known = run.margins is not None
    columns = [
        Column("client"),
        Column("cluster", "cluster"),
        *([Column("true group")] if run.truth is not None else []),
        Column("train", "count", "training samples"),
        Column("test", "count", "test samples"),
        Column(m.name, m.unit, "after the last round, on its own test data"),
        *([Column("margin", m.unit, "its own model less the best other one")] if margin_known else []),
        Column("moves", "count", "how often it changed its cluster"),
        *([Column("part", "text")] if run.unseen else []),
    ]
    train, test = run.details.get("train") or [], run.details.get("test") or []
    rows: list[list[Any]] = []
    for i, name in enumerate(run.names):
        row: list[Any] = [name, int(run.last[i])]
        row += [letter(int(run.truth[i]))] if run.truth is not None else []
        value = float(run.values[-1][i]) if len(run.values) else math.nan
        row += [_at(train, i), _at(test, i), _known(value)]
        if run.margins is not None:
            margin = _known(float(run.margins[i]))
            row.append({"v": margin, "c": "low"} if margin is not None and margin < 0 else margin)
        rows.append([*row, int(run.moves[i]), *(["trained"] if run.unseen else [])])
    for j, name in enumerate(run.unseen):
        k = run.summary["unseen_assignments"].get(name)
        row = [name, k, *([None] if run.truth is not None else [])]
        row += [_at(train, len(run.names) + j), _at(test, len(run.names) + j)]
        row.append(
            _known(float(run.unseen_values[j]))
            if run.unseen_values is not None and j < len(run.unseen_values)
            else None
        )
        rows.append([*row, *([None] if margin_known else []), None, "unseen"])
    return Table(columns, rows, "clients")


def _at(values: list[int], i: int) -> int | None:
    return values[i] if i < len(values) else None


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def again(run: Run) -> Html:
    """How to repeat the run, and what it was."""
    own = run.config.get("data", {}).get("source") == "given"
    if own:
        command = "data and model came from Python: call clusterfl.run with the same population, model and method"
    else:
        command = f"clusterfl run {shlex.quote(str(run.folder / 'config.toml'))} --out runs/again"
    facts = {
        "folder": str(run.folder),
        "version": run.details.get("version") or "not written by this run",
        "config SHA-256": run.details.get("config_sha256") or "not written by this run",
        "data SHA-256": run.summary.get("data_sha256") or "known when the run has ended",
    }
    rows = Html("".join(el("dt", name) + el("dd", value) for name, value in facts.items()))
    config = el("details", el("summary", "the whole config"), el("pre", run.config_text))
    return el("div", el("dl", rows), el("pre", command), config, class_="card below")
