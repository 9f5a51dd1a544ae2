"""The ``[data]`` table of a config, checked field by field."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from clusterfl.data.partition import LEAST, SIZES
from clusterfl.data.shift import SHIFTS
from clusterfl.data.sources import NORMALIZE
from clusterfl.errors import ConfigError, nearest

T = TypeVar("T")
SPLITS = ("clusters", "dirichlet", "class_groups", "natural")
TESTS = ("auto", "balanced", "own")


def _option(default: T, doc: str) -> T:
    made: Any = field(default=default, metadata={"doc": doc})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class DataConfig:
    """The ``[data]`` table: every field says what clients hold. ``build(config, key)`` makes it so."""

    source: str = _option("digits", "the dataset, by its name in clusterfl.data.sources.SOURCES")
    root: str | None = _option(None, "folder of datasets; unset: CLUSTERFL_DATA, else the cache folder")
    split: str = _option("clusters", "clusters | dirichlet | class_groups | natural: who gets which rows")
    clients: int = _option(24, "clients that train; 0 with split='natural': all there are")
    unseen: int = _option(0, "further clients that take no part in training and are admitted at the end")
    clusters: int = _option(4, "true clusters; groups of classes with split='class_groups'")
    cluster_sizes: tuple[float, ...] | None = _option(None, "share of clients per cluster; unset: equal")
    shift: str = _option(
        "auto",
        "how clusters differ: none | rotate | swap_labels | permute_labels | rotate+swap; "
        "auto: rotate with split 'clusters' and 'dirichlet', else none",
    )
    angles: tuple[float, ...] | None = _option(None, "degrees per cluster; unset: the circle in equal parts")
    samples: int | None = _option(None, "train samples per client (mean, if sizes differ); unset: split all")
    sizes: str = _option("equal", "equal | lognormal: samples per client")
    size_sigma: float = _option(1.0, "spread of log-normal sizes")
    alpha: float | None = _option(None, "Dirichlet label skew, alpha / classes per class; unset: IID labels")
    alpha_per_class: bool = _option(False, "alpha counts for each class, as Dirichlet(alpha, ..., alpha)")
    reuse: bool = _option(True, "clients of a cluster may share samples when a class runs out")
    test: str = _option(
        "auto",
        "balanced: equal classes, shared in a cluster | own: like the client's train data; "
        "auto: balanced with split='clusters', else own",
    )
    test_samples: int | None = _option(1000, "balanced test samples per cluster, at most; unset: all")
    test_fraction: float = _option(0.2, "share of a client's samples that are its own test samples")
    indicators: int = _option(0, "public samples per class, taken out before clients get data")
    normalize: str = _option("symmetric", "pixels to -1..1 (symmetric) or 0..1 (unit)")

    def __post_init__(self) -> None:
        choices = {"split": SPLITS, "shift": ("auto", *SHIFTS), "sizes": SIZES, "test": TESTS}
        for name, known in {**choices, "normalize": NORMALIZE}.items():
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} should be a known choice{nearest(str(value), known)}")
        least = {
            "clients": 0 if self.split == "natural" else 1,
            "unseen": 0,
            "clusters": 1,
            "samples": LEAST,
            "test_samples": 1,
            "indicators": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name}={value} should be at least {low}")
        for name in ("alpha", "size_sigma"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value} should be above 0")
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"test_fraction={self.test_fraction} should be between 0 and 1")
        if self.alpha is None and self.split in ("dirichlet", "class_groups"):
            raise ConfigError(f"alpha=None should be a number with split={self.split!r}, for example 0.4")
        if self.split == "class_groups" and self.shift not in ("auto", "none"):
            raise ConfigError(f"shift={self.shift!r} should be 'none' with split='class_groups'")
        for name in ("angles", "cluster_sizes"):
            value = getattr(self, name)
            if value is not None and len(value) != self.clusters:
                raise ConfigError(f"{name}={value} should be {self.clusters} numbers, one per cluster")
        if self.cluster_sizes is not None and min(self.cluster_sizes) <= 0:
            raise ConfigError(f"cluster_sizes={self.cluster_sizes} should all be above 0")
        if self.has_clusters and self.clients and self.clusters > self.clients:
            raise ConfigError(f"clusters={self.clusters} should be at most clients={self.clients}")

    @property
    def has_clusters(self) -> bool:
        """Whether clusters are groups of clients that this config itself makes."""
        return self.split != "class_groups" and self.resolved_shift != "none"

    @property
    def resolved_shift(self) -> str:
        if self.shift != "auto":
            return self.shift
        return "rotate" if self.split in ("clusters", "dirichlet") and self.clusters > 1 else "none"

    def resolved(self) -> DataConfig:
        """The same config with every "auto" replaced by what it means here."""
        test = self.test if self.test != "auto" else "balanced" if self.split == "clusters" else "own"
        clusters = self.clusters if self.has_clusters or self.split == "class_groups" else 1
        plain = {} if clusters == self.clusters else {"clusters": 1, "cluster_sizes": None, "angles": None}
        return replace(self, shift=self.resolved_shift, test=test, **plain)  # type: ignore[arg-type]
