"""Results of cells: one small JSON each, recognised by a digest of what it depends on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import clusterfl
from clusterfl.config import Config
from clusterfl.config.tables import Table
from clusterfl.data.population import Population
from clusterfl.errors import ConfigError
from clusterfl.metrics import Figures, bottom_rounds, clustering, top_rounds
from clusterfl.record import Outcome
from clusterfl.reproduce.spec import METRICS, Cell
from clusterfl.runs.files import write_whole
from clusterfl.runs.results import plain, summary

EXECUTION = (
    "device",
    "engine",
    "checkpoint",
    "methods",
    "eval_inter",
)  # how a run is carried out: a result stays valid without it


CURVES = ("curve", "weighted_curve", "intra_curve", "inter_curve", "moved", "ari_curve")  # what a figure may show


def decisive(config: Config) -> Table:
    """What a result depends on: the whole config but where the data lies and how the run is carried out."""
    table = {k: v for k, v in config.table().items() if k not in EXECUTION}
    table["data"] = {k: v for k, v in table["data"].items() if k != "root"}
    found: Table = json.loads(json.dumps(table))
    return found


def digest(config: Config) -> str:
    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True).encode()).hexdigest()


def result_of(cell: Cell, config: Config, population: Population, outcome: Outcome) -> Table:
    """The JSON of a finished cell. ``config`` is the resolved one, which names the engine."""
    told = summary(config, population, outcome)
    sizes = population.train.sizes[: population.clients]
    measured = [r for r in outcome.records[1:] if r.measured]
    told["accuracy_top5_weighted"] = top_rounds([Figures.of(r.accuracy, sizes).weighted for r in measured])
    told["accuracy_bottom5_rounds"] = bottom_rounds([r.accuracy for r in measured])
    asked = cell.config()
    return plain(
        {
            "paper": cell.experiment.paper,
            "table": cell.experiment.table,
            "row": cell.row.name,
            "setting": cell.setting.name,
            "seed": cell.seed,
            "scale": cell.scale,
            "digest": digest(asked),
            "metrics": {name: told[name] for name in METRICS if name in told},
            "curve": [[r.round, round(float(r.accuracy.nanmean()), 4)] for r in measured],
            "weighted_curve": [[r.round, round(Figures.of(r.accuracy, sizes).weighted, 4)] for r in measured],
            "intra_curve": curve(outcome, "intra") if cell.config().eval_inter else None,
            "inter_curve": curve(outcome, "inter") if cell.config().eval_inter else None,
            "moved": moves(outcome) if outcome.method.clustered else None,
            "ari_curve": clusterings(population, outcome) if outcome.method.clustered else None,
            "seconds": round(told["seconds"], 1),
            "engine": config.engine.name,
            "data_sha256": told["data_sha256"],
            "version": clusterfl.__version__,
            "commit": commit(),
            "config": decisive(asked),
        }
    )


def curve(outcome: Outcome, name: str) -> list[list[float]]:
    """(round, figure), of the rounds that have it."""
    known = [(r.round, getattr(r, name)) for r in outcome.records]
    return [[t, round(value, 4)] for t, value in known if value is not None]


def moves(outcome: Outcome) -> list[list[float]]:
    """(round, share of clients that changed their cluster), of the rounds in which some did."""
    return [[r.round, round(r.moved, 4)] for r in outcome.records if r.moved > 0]


def clusterings(population: Population, outcome: Outcome) -> list[list[float]] | None:
    """(round, ARI), of the start, the end and every round after which it was another."""
    found: list[list[float]] = []
    for r in outcome.records:
        truth = population.at(r.round).truth
        if truth is None:
            return None
        ari = round(clustering(r.assign, truth[: len(r.assign)]).ari, 4)
        if not found or ari != found[-1][1] or r is outcome.records[-1]:
            found.append([r.round, ari])
    return found


def write_result(cell: Cell, result: Table) -> None:
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(cell.path, (json.dumps(result, indent=1) + "\n").encode())


def modernised(config: Table) -> Table:
    """The config of an older result in today's words: what was renamed since means what it meant."""
    return {**config, "method": _modern_method(config["method"])}


RENAMED = {"init": "start", "init_rounds": "start_rounds"}


def _modern_method(method: Table) -> Table:
    table = {RENAMED.get(k, k): _modern_method(v) if k == "base" else v for k, v in method.items()}
    rule, share = table.get("aggregate"), table.get("attackers")
    if isinstance(rule, str) and share is not None:  # a rule and its share were two keys of the method
        if table["name"] != "robust-tkm":  # whose k-means has a share of its own
            del table["attackers"]
        table["aggregate"] = rule if rule in ("mean", "median") else {"name": rule, "attackers": share}
    return table


class Results:
    """What a paper's folder holds now. A run may stand in several tables: one with the same digest is the same.

    Digests are of today: an option that is new since a result was written counts as its default.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Table] = {}
        for path in sorted((folder / "results").glob("*.json")):
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                kept = {k: found[k] for k in ("seed", "metrics", "seconds")}
                kept |= {k: found[k] for k in CURVES if found.get(k)}
                self.files[path.name] = {**kept, "digest": digest(Config.parse(modernised(found["config"])))}
            except (ConfigError, OSError, ValueError, KeyError, TypeError):
                continue  # damaged, or of another time: run again
        self.by_digest = {found["digest"]: found for found in self.files.values()}

    @property
    def seeds(self) -> list[int]:
        return sorted({found["seed"] for found in self.files.values()})

    def of(self, cell: Cell) -> Table | None:
        """The cell's result, unless there is none or the cell means something else by now."""
        try:
            wanted = digest(cell.config())
        except ConfigError:
            return None
        own = self.files.get(cell.path.name)
        return own if own is not None and own["digest"] == wanted else self.by_digest.get(wanted)


def commit() -> str | None:
    """The commit of the checkout that this code runs from; None outside of one."""
    package = Path(clusterfl.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.resolve().parent:
            return None  # installed below somebody else's checkout
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")  # of the package: a page may be new
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
