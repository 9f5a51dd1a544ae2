"""What is measured, always over all clients. A metric's name says model x data x moment:
``accuracy`` is the served (personal, where the method has one) model on the client's test data, after
the round; ``global_accuracy`` is the served model before personalisation. Where the main metric is another
(``rmse``), its name stands in the place of ``accuracy``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from clusterfl.scores import ACCURACY, Metric


@dataclass(frozen=True)
class Figures:
    """One number per client, and the usual ways to put them into one."""

    mean: float
    weighted: float  # by training samples
    std: float  # between clients
    bottom5: float  # mean of the five worst clients

    @staticmethod
    def none() -> Figures:
        """Of a metric that was not measured."""
        nan = float("nan")
        return Figures(nan, nan, nan, nan)

    @staticmethod
    def of(per_client: Tensor, sizes: Tensor, metric: Metric = ACCURACY) -> Figures:
        known = ~per_client.isnan()
        acc, n = per_client[known].double(), sizes[known].double()
        if not len(acc):
            return Figures.none()
        return Figures(
            float(acc.mean()),
            float((acc * n).sum() / n.sum().clamp(min=1.0)),
            float(acc.std(unbiased=False)),
            float(acc.sort(descending=metric.better == "lower").values[:5].mean()),
        )


def bytes_to_reach(
    level: float, values: Sequence[float], spent: Sequence[int], metric: Metric = ACCURACY
) -> int | None:
    """What had been ``spent`` after the first round whose value is as good as ``level``; None: never."""
    return next((b for a, b in zip(values, spent, strict=True) if metric.reached(a, level)), None)


def top_rounds(values: Sequence[float], n: int = 5, metric: Metric = ACCURACY) -> float:
    """The mean of the best ``n`` rounds (FedDSMIC's and others' figure)."""
    known = sorted((v for v in values if v == v), reverse=metric.better == "higher")[:n]
    return float(np.mean(known)) if known else float("nan")


def bottom_rounds(per_round: Sequence[Tensor], worst: int = 5, best: int = 5) -> float:
    """FedDSMIC's code: each of the ``worst`` ranks of clients by the mean of its ``best`` rounds, and their mean."""
    ranks = [acc[~acc.isnan()].sort().values[:worst].tolist() for acc in per_round]
    deep = min((len(r) for r in ranks), default=0)
    return float(np.mean([top_rounds([r[j] for r in ranks], best) for j in range(deep)])) if deep else float("nan")


@dataclass(frozen=True)
class Clustering:
    """How well assignments agree with the truth."""

    ari: float
    nmi: float
    matched: float  # share of clients in the right cluster under the best one-to-one naming


def clustering(assign: Tensor, truth: Tensor) -> Clustering:
    a, t = assign.numpy(), truth.numpy()
    return Clustering(
        float(adjusted_rand_score(t, a)), float(normalized_mutual_info_score(t, a)), matched_accuracy(a, t)
    )


def matched_accuracy(assign: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy after Hungarian matching of cluster names."""
    found, a = np.unique(assign, return_inverse=True)
    real, t = np.unique(truth, return_inverse=True)
    table = np.zeros((len(found), len(real)), dtype=np.int64)
    np.add.at(table, (a, t), 1)
    rows, cols = linear_sum_assignment(-table)
    return float(table[rows, cols].sum() / len(assign))


def intra_inter(cross: Tensor, assign: Tensor) -> tuple[float, float | None]:
    """The mean main metric of cluster models at home and abroad (AWCFL/MCFL's intra and inter accuracy).

    ``cross[i, k]`` is model k on client i, or what client i uses on the data of cluster k. Means are over clusters
    that have clients, so that a large cluster does not count more; inter is None where there is only one.
    """
    alive = assign.unique().tolist()
    table = torch.stack([cross[assign == j][:, alive].mean(dim=0) for j in alive])  # [j: home, k: model]
    home = torch.eye(len(alive), dtype=torch.bool)
    intra = float(table[home].mean())
    return intra, (float(table[~home].mean()) if len(alive) > 1 else None)
