"""The benchmark's results: one Parquet file that grows, and the page that is made from it."""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterfl.bench.grid import HELD_OUT, OPEN, ORACLE, SKEWS, VERSION, Entry, World, worlds
from clusterfl.methods import METHODS
from clusterfl.runs.files import write_whole
from clusterfl.runs.statistics import standing

Row = dict[str, Any]
BEYOND = (*HELD_OUT, "multi_source", "femnist")
FEWEST = 2  # methods of a world: one alone would be the best of it
NEARLY_ALL = 0.9  # of the methods: the worlds that so many have run are those that ranks are taken over
NEAR_ORACLE = 0.02  # of ARI
PAGE_HEAD = f"""# Leaderboard
`clusterfl benchmark` runs the fixed grid `{VERSION}` and rewrites this page from its results
(experiments/benchmark/{VERSION}.parquet). 32 clients of 200 samples (digits: 60), 20 rounds of 2 local epochs
(batch 20, step 0.1), a perceptron of 64 hidden units, every client tested on its own label mix. Methods that need
K are told the true one (4 where there are no groups); `kin`, CFL (and AWCFL and MCFL around it), FLUX and FedGWC
find it themselves. **oracle** is FedAvg inside the true groups, without a personal step; its ARI is that of every
client placed by what the *true* groups say before training, itself left out: about the best that can be known then.
`kin`, `feddsmic` and the personalising methods (`local`, `fedper`, `ditto`, `fedfomo`, `fedavg-ft`, `per-fedavg`)
answer with models of their clients' own. All else is every method's default (CFL, and AWCFL and MCFL around it, may
cut from round 5 on). Only worlds and seeds that nearly all methods of a part ran are counted. Accuracy in per cent,
mean over clients, then over worlds and seeds; *rank* is the mean rank by accuracy of the methods that ran them all
(oracle left out); *near best* the share of worlds in which a method is the best or cannot be told from it (paired
t-test over clients and seeds, Holm's correction, level 0.05; oracle left out); *ARI* and *K found*, the mean number of
clusters beside that of true groups, over worlds with groups; *one* is the share of worlds without groups in which one
cluster was found; *seconds* are of processor time, one thread; *runs* are the rows that count, *seeds* how many seeds
a method has rows of in this part, if only in some of its worlds.
"""


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    from pyarrow import parquet

    rows: list[Row] = parquet.read_table(path).to_pylist()
    return rows


def write(path: Path, rows: Sequence[Row]) -> None:
    """Sorted, so that equal results are equal files."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    full = [{name: row.get(name) for name in columns} for row in sorted(rows, key=lambda r: key_of_row(r))]
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(full), sink, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, sink.getvalue().to_pybytes())


def key_of_row(row: Row) -> tuple[str, str, str, str, int]:
    return row["dataset"], row["scenario"], row["skew"], row["method"], row["seed"]


def key_of(entry: Entry) -> tuple[str, str, str, str, int]:
    return entry.world.dataset, entry.world.scenario, entry.world.skew, entry.method, entry.seed


def page(rows: Sequence[Row]) -> str:
    """The page: the open part and the held-out part, each with all methods, best rank first, then world by world."""
    good = [row for row in rows if not row.get("error")]
    parts = [PAGE_HEAD]
    for title, names in (
        ("Open part: settings may have been chosen here", OPEN),
        ("Held-out part: measured only (but `kin` was looked at with CIFAR-10, SVHN and the writers, too)", BEYOND),
    ):
        ran = [row for row in good if row["dataset"] in names]
        mine = common(ran)
        if not mine:
            parts.append(f"## {title}\nNo world has been run by enough methods yet.\n")
            continue
        cells = collections.Counter(row["dataset"] for row in {cell_of(row): row for row in mine}.values())
        where = ", ".join(
            f"{d} ({count} of {len(worlds([d])) * len({row['seed'] for row in mine})})"
            for d, count in sorted(cells.items())
        )
        told = f"Worlds and seeds that count: {where}; seeds {_seeds(mine)}."
        parts.append(f"## {title}\n{told}{_absent(ran)}\n\n{_overall(mine, ran)}\n{goals(ran)}")
        parts.append(f"### ARI by label skew\n{_by_skew(mine)}\n")
        parts.append(f"### ARI by world\n{_by_world(mine, 'ari', 1.0)}\n")
        parts.append(f"### Accuracy by world\n{_by_world(mine, 'accuracy', 100.0)}\n")
    parts.append(f"## Both parts\n{goals(good)}")
    if failed := sorted({(row["method"], row["error"]) for row in rows if row.get("error")}):
        lines = "\n".join(f"- `{method}`: {error}" for method, error in failed)
        parts.append(f"## What could not be run\n{lines}\n")
    return "\n".join(parts)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def common(rows: Sequence[Row]) -> list[Row]:
    """The rows of those worlds and seeds that nearly all methods ran: where a few did, nobody is compared."""
    ran: dict[tuple[str, str, str, int], set[str]] = {}
    for row in rows:
        ran.setdefault(cell_of(row), set()).add(row["method"])
    enough = max(FEWEST, NEARLY_ALL * len(set().union(*ran.values()))) if ran else 0.0
    return [row for row in rows if len(ran[cell_of(row)]) >= enough]


def cell_of(row: Row) -> tuple[str, str, str, int]:
    return row["dataset"], row["scenario"], row["skew"], row["seed"]


def ranks(rows: Sequence[Row]) -> dict[str, float]:
    """Mean rank by accuracy of the methods that ran all of these worlds and seeds; ties share their rank."""
    cells: dict[tuple[str, str, str, int], dict[str, float]] = {}
    for row in rows:
        if row["method"] != ORACLE:
            cells.setdefault(cell_of(row), {})[row["method"]] = row["accuracy"]
    methods = set().union(*cells.values()) if cells else set()
    ranked = [method for method in methods if all(method in found for found in cells.values())]
    places: dict[str, list[float]] = {m: [] for m in ranked}
    for found in cells.values():
        values = [found[m] for m in ranked]
        for method in ranked:
            better = sum(v > found[method] for v in values)
            places[method].append(better + (values.count(found[method]) + 1) / 2)
    return {m: statistics.fmean(p) for m, p in places.items() if p}


def world_of(row: Row) -> tuple[str, str, str]:
    return row["dataset"], row["scenario"], row["skew"]


def client_pairs(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, dict[tuple[int, int], float]]]:
    """Accuracy by world, method, and seed and client, the oracle left out."""
    found: dict[tuple[str, str, str], dict[str, dict[tuple[int, int], float]]] = {}
    for row in rows:
        if row["method"] != ORACLE:
            pairs = {(row["seed"], i): v for i, v in enumerate(row["each"]) if v is not None}
            found.setdefault(world_of(row), {}).setdefault(row["method"], {}).update(pairs)
    return found


def _shared(values: Mapping[str, Mapping[Any, float]]) -> dict[str, dict[Any, float]]:
    """Of every method the seeds and clients that all of them have."""
    keys = set.intersection(*(set(found) for found in values.values()))
    return {name: {key: found[key] for key in keys} for name, found in values.items()}


def near_best(rows: Sequence[Row]) -> dict[str, float]:
    """The share of its worlds in which a method is the best, or cannot be told from it (the oracle left out)."""
    near: dict[str, list[bool]] = {}
    for values in client_pairs(rows).values():
        found = standing(_shared(values), higher=True)
        for method in values:
            near.setdefault(method, []).append(method == found.best or found.tied(method))
    return {method: statistics.fmean(flags) for method, flags in near.items()}


def short_of_oracle(rows: Sequence[Row], method: str = "kin") -> tuple[int, list[tuple[str, str, str]]]:
    """How many worlds with groups both ran, and those where the method's mean ARI is over .02 below the oracle's, over
    the seeds that both ran."""
    aris: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["method"] in (method, ORACLE) and row["ari"] is not None and row["scenario"] != "none":
            aris.setdefault(world_of(row), {}).setdefault(row["method"], {})[row["seed"]] = row["ari"]
    gaps: dict[tuple[str, str, str], float] = {}
    for world, found in aris.items():
        mine, best = found.get(method, {}), found.get(ORACLE, {})
        if seeds := sorted({*mine} & {*best}):
            gaps[world] = statistics.fmean(best[seed] - mine[seed] for seed in seeds)
    return len(gaps), [world for world, gap in gaps.items() if gap > NEAR_ORACLE + 1e-9]


def below(rows: Sequence[Row], method: str, others: Sequence[str]) -> list[tuple[str, str, str]]:
    """The worlds in which one of the others is better than the method by more than chance."""
    found = []
    for world, values in client_pairs(rows).items():
        if method in values:
            some = {name: values[name] for name in (method, *others) if name in values}
            place = standing(_shared(some), higher=True)
            if place.best != method and not place.tied(method):
                found.append(world)
    return found


def goals(rows: Sequence[Row]) -> str:
    """What is asked of `kin`, counted; nothing if it was not run."""
    mine = [row for row in rows if row["method"] == "kin"]
    if not mine:
        return ""
    count, short = short_of_oracle(rows)
    worse = below(rows, "kin", ("fedavg", "local"))
    alone = [row for row in mine if row["scenario"] == "none"]
    down = {(cell_of(row), row["method"]): row["bytes_down"] for row in rows}
    alike = [
        row["bytes_down"] == down.get((cell_of(row), "fedavg")) for row in mine if (cell_of(row), "fedavg") in down
    ]
    return (
        f"Over all seeds that were run ({_seeds(mine)} of `kin`): its ARI is within {NEAR_ORACLE} of the oracle's, as "
        f"means over the seeds that both ran, in {count - len(short)} of {count} worlds with groups; "
        f"short: {_listed(short)}. It says one group in {sum(row['clusters'] == 1 for row in alone)} of {len(alone)} "
        "runs without groups. "
        f"FedAvg or Local is better by more than chance in {len(worse)} of "
        f"{len({world_of(row) for row in mine})} worlds: {_listed(worse)}. "
        f"It sends down as many bytes as FedAvg in {sum(alike)} of {len(alike)} runs.\n"
    )


def _seeds(rows: Sequence[Row]) -> str:
    return ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))


def _listed(found: Sequence[tuple[str, str, str]]) -> str:
    return "; ".join(", ".join(world) for world in found) or "none"


def _absent(ran: Sequence[Row]) -> str:
    """Who has no row in a part."""
    missing = [f"`{name}`" for name in sorted({*METHODS, ORACLE} - {row["method"] for row in ran})]
    return f" Without a row in this part: {', '.join(missing)}." if missing else ""


def found_of_true(rows: Sequence[Row]) -> str:
    """Mean number of clusters beside the mean number of groups, over worlds that have some: ``3.5 of 4.0``."""
    pairs = [(row["clusters"], World(*world_of(row)).groups) for row in rows if row["clusters"] is not None]
    planted = [(found, true) for found, true in pairs if true > 1]
    if not planted:
        return "-"
    found, true = (statistics.fmean(values) for values in zip(*planted, strict=True))
    return f"{found:.1f} of {true:.1f}"


def _overall(rows: Sequence[Row], ran: Sequence[Row]) -> str:
    """``ran`` are all rows of the part, of which ``rows`` count."""
    place, near = ranks(rows), near_best(rows)
    lines = []
    for method in {row["method"] for row in rows}:
        mine = [row for row in rows if row["method"] == method]
        planted = [row for row in mine if row["scenario"] != "none"]
        alone = [row["clusters"] for row in mine if row["scenario"] == "none" and row["clusters"] is not None]
        ari = None if all(row["clusters"] is None for row in mine) else _mean(row["ari"] for row in planted)
        one = _mean(float(c == 1) for c in alone)
        mb = _mean((row["bytes_up"] + row["bytes_down"]) * 1e-6 for row in mine)
        accuracy, worst = (_mean(row[name] * 100 for row in mine) for name in ("accuracy", "worst5"))
        seconds = _mean(row["seconds"] for row in mine)
        cells = [method, _shown(place.get(method), 1), _shown(near.get(method)), _shown(accuracy), _shown(worst)]
        seeds = {row["seed"] for row in ran if row["method"] == method}
        cells += [_shown(ari), found_of_true(mine), _shown(one), _shown(mb, 1), _shown(seconds, 1)]
        cells += [str(len(mine)), str(len(seeds))]
        lines.append((place.get(method, 99.0), cells))
    head = ["method", "rank", "near best", "accuracy", "worst 5", "ARI", "K found", "one", "MB", "seconds"]
    return _markdown([*head, "runs", "seeds"], [cells for _, cells in sorted(lines)])


def _by_skew(rows: Sequence[Row]) -> str:
    """Groups are never those of labels here: whom skew leads astray takes a nuisance for a signal."""
    planted = [row for row in rows if row["scenario"] != "none" and row["clusters"] is not None]
    methods = sorted({row["method"] for row in planted})
    body = []
    for method in methods:
        by_skew = {s: [r["ari"] for r in planted if r["method"] == method and r["skew"] == s] for s in SKEWS}
        body.append([method, *(_shown(_mean(values)) for values in by_skew.values())])
    return _markdown(["method", *SKEWS], body)


def _by_world(rows: Sequence[Row], figure: str, scale: float) -> str:
    found = list(dict.fromkeys(world_of(row) for row in rows))
    methods = sorted({row["method"] for row in rows if figure != "ari" or row["clusters"] is not None})
    if figure == "ari":
        found = [world for world in found if world[1] != "none"]
    body = []
    for world in found:
        mine = [row for row in rows if world_of(row) == world]
        values = [_mean(row[figure] for row in mine if row["method"] == method) for method in methods]
        body.append(
            [", ".join(world), *(_shown(None if v is None else v * scale, 2 if scale == 1 else 1) for v in values)]
        )
    return _markdown(["world", *methods], body)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
