"""The ``[data]`` table of a config, checked field by field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from clusterfl.data.partition import LEAST, SIZES
from clusterfl.data.registry import NORMALIZE, is_natural, is_own, names_in
from clusterfl.data.shift import SHIFTS
from clusterfl.data.synthetic import is_planted, is_synthetic
from clusterfl.data.user_data import is_function
from clusterfl.errors import ConfigError, suggestion
from clusterfl.fields import option
from clusterfl.outside import absolute

SPLITS = ("clusters", "dirichlet", "class_groups", "natural")
TESTS = ("balanced", "own")
CLIENTS = 24  # unless the data is a user's own
UNSET: Any = None  # a field's default that depends on the others
MOST = 10_000_000  # clients, and samples of a client: more would fill the machine before anything is said
MOST_ROWS = 1_000_000_000
GIVEN = "given"  # a run whose data, or whose model, is not in its config: it came from Python, or nodes have it


@dataclass(frozen=True)
class DataConfig:
    """The ``[data]`` table: every field says what clients hold. ``build(config, key)`` makes it so."""

    source: str = option(
        "digits",
        "a name in clusterfl.data.SOURCES, several joined as mnist+usps (each one a cluster), multi_source, "
        "synthetic (LEAF's tasks; pooled with split='dirichlet'), linear-regression:DIMS (planted maps), "
        "folder:PATH (one .npz per client), table:PATH (.csv or .parquet) or mine.py:function (a dict of clients)",
    )
    root: str | None = option(None, "folder of datasets; unset: CLUSTERFL_DATA, else the cache folder")
    split: str = option(
        "auto",
        "clusters: each true cluster shifts its own copy | dirichlet: all rows over all clients, class by class "
        "(CFL) | class_groups: groups of classes over clients (FedEM) | natural: the source's own clients; "
        "auto: natural where the source comes split by client, else clusters",
    )
    clients: int = option(
        UNSET, "clients that train; 0 with split='natural': all there are; unset: 24, or all of your own data"
    )
    unseen: int = option(0, "further clients that take no part in training and are admitted at the end")
    clusters: int = option(4, "true clusters; groups of classes with split='class_groups'")
    cluster_sizes: tuple[float, ...] | None = option(None, "share of clients per cluster; unset: equal")
    shift: str = option(
        "auto",
        "how clusters differ: none | rotate | flip (mirrored) | contrast | swap_labels | permute_labels | rotate+swap; "
        "auto: rotate with split 'clusters' and 'dirichlet' of one source, else none",
    )
    angles: tuple[float, ...] | None = option(None, "degrees per cluster; unset: the circle in equal parts")
    samples: int | None = option(None, "train samples per client (mean, if sizes differ); unset: split all")
    min_samples: int | None = option(
        None, "split 'dirichlet' or 'class_groups': clients that are dealt fewer samples are left out; unset: none is"
    )
    sizes: str = option("equal", "equal | lognormal: samples per client")
    size_sigma: float = option(1.0, "spread of log-normal sizes")
    alpha: float | None = option(None, "Dirichlet label skew, alpha / classes per class; unset: IID labels")
    alpha_per_class: bool = option(False, "alpha counts for each class, as Dirichlet(alpha, ..., alpha)")
    reuse: bool = option(True, "clients of a cluster may share samples when a class runs out")
    test: str = option(
        "auto",
        "balanced: equal classes, shared in a cluster | own: like the client's train data; "
        "auto: balanced with split='clusters', else own",
    )
    test_samples: int | None = option(1000, "balanced test samples per cluster, at most; unset: all")
    test_fraction: float = option(0.2, "share of a client's samples that are its own test samples")
    indicators: int = option(0, "public samples per class, taken out before clients get data")
    normalize: str = option("symmetric", "pixels to -1..1 (symmetric) or 0..1 (unit)")
    noise: float | None = option(None, "linear-regression: standard deviation of the targets' noise; unset: 0.1")
    drift_round: int | None = option(None, "round from which some clients hold data of another cluster")
    drift_share: float = option(0.5, "share of the training clients that drift")
    client_column: str | None = option(None, "table: column that says whose a row is; unset: client")
    label_column: str | None = option(None, "table: column of labels; unset: label")
    feature_columns: tuple[str, ...] | None = option(None, "table: columns of features, in order; unset: all others")
    categorical: tuple[str, ...] | None = option(
        None, "table: feature columns of words, each of which becomes a feature of its own, 0 or 1"
    )

    def __post_init__(self) -> None:
        if is_function(self.source):
            object.__setattr__(self, "source", absolute(self.source))  # a run can be taken up from anywhere
        if self.clients is UNSET:
            whole = is_own(self.source) and self.resolved_split == "natural"
            object.__setattr__(self, "clients", 0 if whole else CLIENTS)
        choices = {"split": SPLITS, "shift": SHIFTS, "test": TESTS}
        known = {name: ("auto", *words) for name, words in choices.items()}
        for name, words in {**known, "sizes": SIZES, "normalize": NORMALIZE}.items():
            value = getattr(self, name)
            if value not in words:
                raise ConfigError(f"{name}={value!r} should be a known choice{suggestion(str(value), words)}")
        lowest = {"clients": 0 if self.resolved_split == "natural" else 1, "unseen": 0, "clusters": 1}
        lowest |= {"samples": LEAST, "min_samples": 1, "test_samples": 1, "indicators": 0, "drift_round": 1}
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name}={value} should be at least {low}")
        for name in ("clients", "unseen", "samples"):
            value = getattr(self, name)
            if value is not None and value > MOST:
                raise ConfigError(f"{name}={value} should be at most {MOST}")
        if self.samples is not None and (self.clients + self.unseen) * self.samples > MOST_ROWS:
            raise ConfigError(f"samples={self.samples} for each client should be at most {MOST_ROWS} together")
        for name in ("alpha", "size_sigma"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} should be above 0 and finite")
        if self.noise is not None and not 0 <= self.noise < float("inf"):
            raise ConfigError(f"noise={self.noise} should be at least 0 and finite")
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"test_fraction={self.test_fraction} should be between 0 and 1")
        if not 0 < self.drift_share <= 1:
            raise ConfigError(f"drift_share={self.drift_share} should be above 0 and at most 1")
        self._check_together()

    def _check_together(self) -> None:
        split, clusters, sources = self.resolved_split, self.resolved_clusters, len(names_in(self.source))
        if self.alpha is None and split in ("dirichlet", "class_groups"):
            raise ConfigError(f"alpha=None should be a number with split={split!r}, for example 0.4")
        if split == "class_groups" and self.resolved_shift != "none":
            raise ConfigError(f"shift={self.shift!r} should be 'none' with split='class_groups'")
        if is_planted(self.source) and split != "natural":
            raise ConfigError(f"split={self.split!r} should be 'natural' with source={self.source!r}")
        if self.noise is not None and not is_planted(self.source):
            raise ConfigError(f"noise={self.noise} should be unset unless source is 'linear-regression'")
        if is_synthetic(self.source) and split == "clusters":
            raise ConfigError(f"split='clusters' should be 'natural' or 'dirichlet' with source={self.source!r}")
        for name in ("client_column", "label_column", "feature_columns", "categorical"):
            if getattr(self, name) is not None and not (self.source.startswith("table:") or self.source == GIVEN):
                raise ConfigError(f"{name}={getattr(self, name)!r} should be unset unless source is table:PATH")
        if sources > 1 and split != "clusters":
            raise ConfigError(f"split={self.split!r} should be 'clusters' with joined sources, each one a cluster")
        if clusters % sources:
            raise ConfigError(f"clusters={clusters} should be a multiple of the {sources} joined sources")
        if self.min_samples is not None and (split not in ("dirichlet", "class_groups") or self.unseen):
            raise ConfigError(
                f"min_samples={self.min_samples} should be unset, or split 'dirichlet' or 'class_groups', and unseen 0"
            )
        for name in ("angles", "cluster_sizes"):
            value = getattr(self, name)
            wanted = self.clusters if clusters == 1 else clusters
            if value is not None and len(value) != wanted:
                raise ConfigError(f"{name}={value} should be {wanted} numbers, one per cluster")
        if self.cluster_sizes is not None and min(self.cluster_sizes) <= 0:
            raise ConfigError(f"cluster_sizes={self.cluster_sizes} should all be above 0")
        if self.clients and split != "class_groups" and clusters > self.clients:
            raise ConfigError(f"clusters={clusters} should be at most clients={self.clients}")
        if self.drift_round is not None and clusters == 1:
            raise ConfigError(f"drift_round={self.drift_round} should be unset where there is one cluster")

    @property
    def resolved_split(self) -> str:
        if self.split != "auto":
            return self.split
        return "natural" if is_natural(self.source) or is_synthetic(self.source) else "clusters"

    @property
    def resolved_shift(self) -> str:
        if self.shift != "auto":
            return self.shift
        shifts = self.resolved_split in ("clusters", "dirichlet") and len(names_in(self.source)) == 1
        return "rotate" if shifts and self.clusters > 1 else "none"

    @property
    def resolved_clusters(self) -> int:
        """As many as differ: without a shift, the joined sources are the clusters."""
        tasks = is_synthetic(self.source) and self.resolved_split == "natural"
        if self.resolved_split == "class_groups" or tasks or self.resolved_shift != "none":
            return self.clusters
        return len(names_in(self.source))

    def resolved(self) -> DataConfig:
        """The same config with every "auto" replaced by what it means here."""
        split, clusters = self.resolved_split, self.resolved_clusters
        test = self.test if self.test != "auto" else "balanced" if split == "clusters" else "own"
        alone: dict[str, Any] = {"cluster_sizes": None, "angles": None} if clusters == 1 else {}
        return replace(self, split=split, shift=self.resolved_shift, clusters=clusters, test=test, **alone)
