"""Images side by side: what a cluster's model takes for each class (MD-ICFL's pseudo samples, its Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterfl.report.svg import Html, el, picture, png, shortened, text


def sheet(x: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, title: str, width: float = 1160.0) -> Html:
    """``[K, C, M, height, width(, 3)]`` as one image for each cluster: its classes across, M of each down."""
    k, classes, m = x.shape[:3]
    left, top, gap = 86.0, 28.0, 10.0
    cell = min((width - left - 12) / classes, 96.0)
    parts = [
        text(left + (c + 0.5) * cell, 18, shortened(columns[c], max(int(cell / 7), 3)), "middle", "tick")
        for c in range(classes)
    ]
    for j in range(k):
        y = top + j * (m * cell + gap)
        parts.append(text(left - 10, y + m * cell / 2 + 4, rows[j], "end", "name"))
        place = {"x": left, "y": y, "width": cell * classes, "height": cell * m}
        parts.append(el("image", href=png(mosaic(x[j])), preserveAspectRatio="none", class_="pixels", **place))
    return picture(width, top + k * (m * cell + gap), parts, title)


def mosaic(x: np.ndarray) -> np.ndarray:
    """``[C, M, height, width(, 3)]`` as one picture, a gap between images; each from its least to its most."""
    classes, m, height, width = x.shape[:4]
    found = np.zeros((m * (height + 1), classes * (width + 1), 4), dtype=np.uint8)
    for c in range(classes):
        for i in range(m):
            image = x[c, i]
            low, high = float(image.min()), float(image.max())
            grey = ((image - low) / max(high - low, 1e-12) * 255).round().astype(np.uint8)
            place = found[i * (height + 1) :, c * (width + 1) :][:height, :width]
            place[..., :3] = grey if grey.ndim == 3 else grey[..., None]
            place[..., 3] = 255
    return found
