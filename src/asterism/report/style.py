"""The one look of every picture, and its way into a page: text stays text, and equal runs give equal bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asterism.report.words import printable

INK, MUTED, FAINT, RULE = "#1f2933", "#5f6b7a", "#b4bfca", "#d5dbe1"
# From the palette of Okabe and Ito, told apart by colour-blind eyes; lightness differs too, for a grey print.
BLUE, ORANGE, GREEN, SKY, RED, PINK = "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7"
PALETTE = (BLUE, ORANGE, GREEN, RED, SKY, PINK, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHADES = "Blues"
WIDTH = 9.0
LONGEST_NAME = 22

STYLE: Mapping[Any, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "asterism",
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """``draw`` in the report's look, whatever the reader's own matplotlib settings, which stay as they are."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _own_settings():
            return draw(*args, **kwargs)

    return inside


@contextmanager
def _own_settings() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def canvas(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """An empty figure, in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def shown(name: str, longest: int = LONGEST_NAME) -> str:
    """A name as a picture can print it: one line, no control characters, not too long."""
    plain = printable(" ".join(name.split()))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def thinned(names: list[str], most: int) -> tuple[list[int], list[str]]:
    """Positions and names of at most about ``most`` evenly spaced ticks."""
    step = max(1, -(-len(names) // most))
    positions = list(range(0, len(names), step))
    return positions, [names[i] for i in positions]


def svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an ``svg`` element for a page: ids begin with ``name``, and ``label`` says what it shows."""
    with _own_settings(), warnings.catch_warnings():
        # The reader's browser has the letters that the drawing font lacks: text is not turned into shapes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    _without_extras(root)
    for element in root.iter():
        _rename(element, name)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    largest = f"max-width:{100 * figure.get_figwidth():.0f}px"
    root.attrib.update({"role": "img", "aria-label": printable(label), "style": largest})
    return ElementTree.tostring(root, encoding="unicode")


def as_file(element: str) -> str:
    """An ``svg`` element of a page as the text of a file of its own."""
    return element.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _without_extras(root: ElementTree.Element) -> None:
    """Takes out what a page must not inherit: a style sheet for everything, and a record of the drawing."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)


def _rename(element: ElementTree.Element, name: str) -> None:
    """Plain HTML names instead of name spaces, and ids that no other picture of the page has."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = re.sub(r"^#", f"#{name}-", value)
        element.set(key, value.replace("url(#", f"url(#{name}-"))
