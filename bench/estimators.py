"""Estimates by method for several numbers of novel classes, from pools that ``bench.pools`` wrote.

    python -m bench.estimators pools/cifar100 --out results/estimators-cifar100.json

Each entry is the mean over seeds; the last column is the mean distance from the truth, in percent of it, as in the
paper's appendix. A count that is in the output already is not made again. The stand-in for EMaCS is the
DTC/AutoNovel-type estimator: EMaCS is not published under this name.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.files import write_json
from asterism.metrics import count_error
from asterism.seeds import number
from bench.record import described


class Row(NamedTuple):
    """One row of the table: a method, settings other than its defaults, and what it is told of the known classes."""

    method: str
    settings: tuple[str, ...] = ()
    known: str = "known"


ROWS = {
    "ppm": Row("ppm"),
    "ppm-exact": Row("ppm-exact"),
    "macc": Row("macc"),
    "macc, raw": Row("macc", ("scale=raw",)),
    "macc, class means": Row("macc", known="means"),
    "emacs (stand-in)": Row("emacs"),
    "emacs (stand-in), class means": Row("emacs", known="means"),
    "silhouette": Row("silhouette"),
    "gap": Row("gap"),
    "eigengap": Row("eigengap"),
    "louvain": Row("louvain"),
    "louvain, 10 neighbours": Row("louvain", ("neighbours=10",)),
}


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of pools.")],
    out: Annotated[Path | None, typer.Option(help="JSON file of the results; gone on with if it exists.")] = None,
    rows: Annotated[str, typer.Option(help="Rows, separated by semicolons.")] = ";".join(ROWS),
) -> None:
    """Counts every pool by every method and prints the table."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise AsterismError("no pools", where=str(folder), fix="python -m bench.pools CONFIG --out DIR")
    found = json.loads(out.read_text()) if out is not None and out.exists() else described()
    done = {(run["row"], run["pool"]) for run in found["runs"]}
    for name in rows.split(";"):
        for file in files:
            if (name, file.name) in done:
                continue
            found["runs"].append({"row": name, "pool": file.name, **counted(file, ROWS[name])})
            if out is not None:
                write_json(out, found)
    print("\n".join(table(found["runs"])))


def counted(file: Path, row: Row) -> dict[str, Any]:
    """What one method makes of one pool, and how long it takes."""
    with np.load(file) as stored:
        arrays = {key: stored[key] for key in stored.files}
    seed, true = int(arrays["seed"]), int(arrays["true"])
    drawn = number(seed, "estimate", "novel-1")  # as a stage of that seed draws
    pool = Pool.of(arrays["features"], arrays["sizes"], known=arrays[row.known], seed=drawn)
    started = time.perf_counter()
    result = ESTIMATORS[row.method].count(pool, settings_of(row.method, row.settings))
    return {
        "true": true,
        "seed": seed,
        "estimated": result.count,
        "near": None if result.search is None else list(result.search.near),
        "prototypes": len(pool.prototypes),
        "seconds": round(time.perf_counter() - started, 3),
    }


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Rows by method, columns by true number."""
    numbers = sorted({run["true"] for run in runs})
    lines = [f"| method | {' | '.join(map(str, numbers))} | error (%) | seconds |", "| --- " * (len(numbers) + 3) + "|"]
    for name in dict.fromkeys(run["row"] for run in runs):
        own = [run for run in runs if run["row"] == name]
        cells = [cell([run["estimated"] for run in own if run["true"] == true]) for true in numbers]
        errors = [count_error(run["true"], run["estimated"]) or 0.0 for run in own]
        seconds = max(run["seconds"] for run in own)
        lines.append(f"| {name} | {' | '.join(cells)} | {statistics.fmean(errors):.1f} | {seconds:.2f} |")
    return lines


def cell(estimates: Sequence[int]) -> str:
    """The mean over seeds, and their standard deviation where there are several."""
    if not estimates:
        return "-"
    if len(estimates) == 1:
        return str(estimates[0])
    return f"{statistics.fmean(estimates):.1f} ± {statistics.stdev(estimates):.1f}"


if __name__ == "__main__":
    typer.run(main)
