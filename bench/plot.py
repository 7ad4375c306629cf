"""The newest comparison with peers as a picture for the documentation.

python -m bench.plot                    the newest results/bench/*-peers.json of a CPU
python -m bench.plot --file results/bench/h200-20261120-peers.json --out docs/images/peers-h200.png
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from asterism.errors import AsterismError
from asterism.report.style import BLUE, FAINT, INK, MUTED, styled
from bench.record import RESULTS

Row = Mapping[str, Any]


@styled
def picture(rows: Sequence[Row], circumstances: str) -> Figure:
    """A panel for each work: how many times the seconds of ours a peer's round takes."""
    works = list(dict.fromkeys(row["work"] for row in rows))
    figure = Figure(figsize=(9.0, 2.6), layout="constrained")
    for panel, work in enumerate(works):
        axes = figure.add_subplot(1, len(works), panel + 1)
        shown = [row for row in rows if row["work"] == work and "times_ours" in row]
        ours = next(row["seconds_per_round"] for row in shown if row["peer"] == "asterism")
        names, ratios = [row["peer"] for row in shown], [row["times_ours"] for row in shown]
        axes.barh(names, ratios, color=[BLUE if name == "asterism" else FAINT for name in names], height=0.65)
        for place, ratio in enumerate(ratios):
            axes.annotate(f"{ratio:.3g}×", (ratio, place), (3, 0), textcoords="offset points", va="center", color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * max(ratios))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0, labelleft=panel == 0 or names != [row["peer"] for row in rows][: len(names)])
        axes.set_title(f"{work}\nours {ours:.3g} s a round", fontsize=9.5, color=INK)
    figure.supxlabel(circumstances, fontsize=8, color=MUTED)
    return figure


def newest() -> Path:
    """The newest file of a comparison on a CPU."""
    files = sorted(RESULTS.glob("cpu*-peers.json"))
    if not files:
        raise AsterismError("no comparison to draw", where=str(RESULTS), fix="python -m bench.peers")
    return files[-1]


def main(
    file: Annotated[
        Path | None, typer.Option(help="JSON file of a comparison; the newest where none is given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="PNG file.")] = Path("docs/images/peers-cpu.png"),
) -> None:
    """Draws the comparison."""
    found = json.loads((file or newest()).read_text())
    said = f"{found['machine']}; torch {found['versions']['torch']}; commit {found['commit']}; {found['date']}; "
    loads = [load for row in found["runs"] for load in row.get("load", [])]
    figure = picture(found["runs"], f"{said}load average {min(loads):.1f} to {max(loads):.1f}")
    figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    typer.run(main)
