"""Heat maps of FCCA's similarity, confidence and their product (the paper's Fig. 2).

>>> matrices, ids = method.similarity(state)
>>> draw_similarity(matrices, state.assign[ids], "similarity.png", ids=ids)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from clusterfl.errors import ClusterflError
from clusterfl.parts.similarity import Similarity

TITLES = ("B: mean cosine", "P: confidence", "S = B · P")
NAMED = 30  # up to so many clients each row carries its client's id


def draw_similarity(
    matrices: Similarity, assign: Tensor, path: str | Path, *, ids: Tensor | None = None, title: str = ""
) -> Path:
    """Writes a PNG of B, P and S, means over labels, with clients sorted by ``assign``; gives its path.

    ``assign`` is any grouping: the clusters found, or the true ones.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ClusterflError("matplotlib should be installed for figures: pip install 'clusterfl[report]'") from None
    order = torch.argsort(assign, stable=True)
    names = (torch.arange(len(assign)) if ids is None else ids)[order].tolist()
    ends = torch.bincount(assign).cumsum(0)
    figure = Figure(figsize=(13.0, 4.4), layout="constrained")
    if title:
        figure.suptitle(title)
    for axes, name, matrix in zip(figure.subplots(1, 3), TITLES, matrices.mean(), strict=True):
        shown = matrix[order][:, order]
        if name.startswith("P"):
            image = axes.imshow(shown.numpy(), cmap="Greys", vmin=0.0, vmax=float(shown.max()))
        else:
            most = float(shown.abs().max())
            image = axes.imshow(shown.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
        for end in ends[:-1].tolist():
            axes.axhline(end - 0.5, color="black", linewidth=0.8)
            axes.axvline(end - 0.5, color="black", linewidth=0.8)
        places = range(len(names)) if len(names) <= NAMED else []
        axes.set_xticks(places, [names[p] for p in places], rotation=90, fontsize=7)
        axes.set_yticks(places, [names[p] for p in places], fontsize=7)
        axes.set(title=name, xlabel="client, by cluster")
        figure.colorbar(image, ax=axes, shrink=0.85)
    out = Path(path)
    figure.savefig(out, dpi=150, format="png")
    return out
