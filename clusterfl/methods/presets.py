"""What the papers say, word by word, where this library's defaults say something else.

A preset holds what differs from the defaults or, as the warm start of searches, from what scenarios of this library
set, so an empty one says: the default is the paper's; and it names what the paper says as the default does. What
depends on the data (the number of clusters, the model, rounds, epochs) belongs to an experiment, and what makes a
variant of the paper's own (the sampler, +Prox) to who asks for it: both are in none of them.

>>> preset("md-icfl", "paper", k=4)          # in Python
>>> # method.preset = "paper" in a config, over which the method's other keys go; name@paper in compare
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterfl.errors import ConfigError, closest
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.parts.local import SGD


@dataclass(frozen=True)
class Preset:
    """What one paper says of one method, as the tables of a config would have it."""

    why: str  # where the paper says so, and why the default is another
    method: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)  # what it says of local training, for all its data
    same: tuple[str, ...] = ()  # settings of the method whose default is what the paper says

    @property
    def names(self) -> tuple[str, ...]:
        """All settings of the method that the paper gives."""
        return (*self.method, *self.same)


SAME = "the defaults are the paper's"
RANDOM = {"start": "independent"}

PAPER: dict[str, Preset] = {
    # -- the five papers' systems
    "md-icfl": Preset(
        "random models and ids (section 3.4), no rounds of rest, mu = 0.5 (section 5); from such a start the model "
        "distance has to find the clusters by itself, and does not on every seed",
        {**RANDOM, "warmup": 0, "start_rounds": 1, "prior_mean": 0.5, "warm": False},
        {"lr": 0.1, "batch": 50},
        same=("samples", "iterations", "rate", "penalty", "squared", "generator_batch", "generator_noise"),
    ),
    "fedds": Preset(
        "random centres (section 4.1), clusters from the first round on; the answers of models that have hardly learnt "
        "tell their last batches rather than their data",
        {**RANDOM, "warmup": 0},
        {"lr": 0.01, "momentum": 0.9, "batch": 32, "steps": 20},
        same=("weights",),
    ),
    "feddsmic": Preset(
        "random centres (section 4.1), clusters from the first round on; one personal step",
        {**RANDOM, "warmup": 0},
        {"lr": 0.01, "momentum": 0.9, "batch": 32, "steps": 20},
        same=("weights", "inner_lr", "independent", "personal_steps"),
    ),
    "fcca": Preset(
        "SGD on the summed likelihood of raw features, after the encoder's own training (Algorithm 1, eq. 3), clusters "
        "from the first round on; deep flows diverge at it",
        {"recipe": "literal", "order": "encoder-first", "warmup": 0, "centred": False},
        {"lr": 0.01, "batch": 64, "steps": 20},
        same=("optimizer", "standardised", "per_dim", "flow_lr", "alpha", "flow_steps", "flow_batch"),
    ),
    "fesem": Preset(
        "the start is the paper's own: k-means, the best of 20 (section 6.1.4); eq. 7 weighs the pull by a client's "
        "size, which the default leaves out: it asks clients for their sizes",
        {"by_size": True},
        same=("start", "weights", "distance_layers"),
    ),
    "awcfl": Preset(
        "mixed models go back into training, and clusters come from k-means on weights in every round (Algorithm 1); a "
        "base that chooses by its centres cannot tell them apart once they are mixed",
        {"base": {"name": "kmeans"}, "mix_for": "both"},
    ),
    "mcfl": Preset(
        "clusters come from k-means on weights in every round (Algorithm 2), and means are compared by their absolute "
        "difference (section 3.2)",
        {"base": {"name": "kmeans"}, "norm": "l1"},
        same=("feature", "noise", "download"),
    ),
    "kmeans": Preset(SAME + "; restarts are ours"),
    # -- the baselines
    "local": Preset(SAME),
    "fedavg": Preset(SAME, same=("weights", "aggregate")),
    "fedavg-ft": Preset(SAME + "; how long clients tune is ours", same=("weights",)),
    "feddane": Preset(SAME + "; its mu is tuned per dataset there", same=("weights",)),
    "feddist": Preset(SAME, same=("eps", "weights")),
    "feddws": Preset(SAME, same=("eps", "weights")),
    "fedfomo": Preset(SAME, same=("models", "epsilon", "epsilon_decay", "validation")),
    "fedper": Preset(SAME + "; how many layers stay is varied there", same=("weights",)),
    "fedprox": Preset(SAME + "; its mu is chosen per dataset there", same=("weights",)),
    "fedsgd": Preset(SAME),
    "per-fedavg": Preset(
        SAME + "; its step sizes, alpha and [local] lr, are chosen per experiment there", same=("order", "tune_steps")
    ),
    "pfa": Preset(SAME + ", but for group_round: there the common model is trained to the end first"),
    "robust-tkm": Preset(
        SAME + ", but for erm_epochs, where it solves the local problems exactly; the share of attackers is ours"
    ),
    "ifca": Preset(
        "random models (Algorithm 1); from these it loses a cluster on some seeds",
        RANDOM,
        same=("weights", "aggregate"),
    ),
    "hypcluster": Preset(
        "random hypotheses; from these it loses a cluster on some seeds", RANDOM, same=("server", "server_lr")
    ),
    "cfl": Preset(
        "absolute norms eps1 = 0.4 and eps2 = 1.6, no test of the gap and no cut in the first 20 rounds, as the "
        "authors publish them: tuned to one model and step size, with others it cuts never, always or late",
        {"relative": False, "gap": None, "start_round": 20},
        same=("eps1", "eps2", "max_clusters", "linkage", "min_size"),
    ),
    "fl-hc": Preset(SAME + "; linkage and round are swept there", same=("weights",)),
}
PRESETS: dict[str, dict[str, Preset]] = {"paper": PAPER}


def find(method: str, name: str, path: str = "preset") -> Preset:
    """The preset of a method; ConfigError, in one sentence, where there is none."""
    if name not in PRESETS:
        close = closest(name, PRESETS)
        end = f"did you mean {close!r}?" if close else f"known: {', '.join(PRESETS)}"
        raise ConfigError(f"{path}={name!r} should be a known preset; {end}")
    if method not in PRESETS[name]:
        raise ConfigError(f"{path}={name!r} should be left out: there is none of the method {method!r}")
    return PRESETS[name][method]


def preset(method: str, name: str = "paper", **on_top: Any) -> Method[Any]:
    """A method with the settings of a preset, its local rule's included, and ``on_top`` of them these."""
    found, cls = find(method, name), METHODS[method]
    values = {key: _made(value) for key, value in found.method.items()} | on_top
    if found.local and "local" not in on_top:
        values["local"] = SGD(**found.local)
    return cls(**values)


def _made(value: Any) -> Any:
    """A base is written as its table."""
    if not isinstance(value, Mapping):
        return value
    fields = dict(value)
    return METHODS[fields.pop("name")](**fields)
