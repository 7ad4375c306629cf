"""The reconstruction gallery: what an attack recovered from prototypes, beside the nearest real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asterism.report.style import WIDTH, styled

SIDE = 0.62  # inches of one picture


@styled
def gallery(groups: Sequence[Mapping[str, Any]]) -> Figure:
    """A line for each number of images behind a prototype: recovered above, nearest real image below."""
    across = max((len(group["pictures"]) for group in groups), default=1)
    figure = Figure(figsize=(WIDTH, 2 * SIDE * len(groups) + 0.4), layout="constrained")
    panels = figure.subplots(2 * len(groups), across, squeeze=False)
    for g, group in enumerate(groups):
        for column in range(across):
            pair = group["pictures"][column] if column < len(group["pictures"]) else {}
            for line, name in enumerate(("recovered", "nearest")):
                _picture(panels[2 * g + line][column], pair.get(name))
        first: Axes = panels[2 * g][0]
        first.set_ylabel(words(group), rotation=0, ha="right", va="top")
    return figure


def words(group: Mapping[str, Any]) -> str:
    """What a line of the gallery is about."""
    kind = "sent, " if group["kind"] == "sent" else ""
    return f"{kind}{group['images']} behind\n{group['psnr']:.1f} dB"


def _picture(axes: Axes, image: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if image is not None:
        pixels = np.array(image, dtype=np.uint8).transpose(1, 2, 0)
        axes.imshow(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels, cmap="grey", vmin=0, vmax=255)
