"""Time and memory of the exact spanning tree of a pool, beside the paper's 51 runs of DBSCAN where they end.

    python -m bench.tree

Each size is measured in a process of its own, so that one peak does not hide in another; its threads are those that
``OMP_NUM_THREADS`` allows. Points are float32 with 512 dimensions, once noise and once Gaussian groups of fifty.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.cluster import DBSCAN

from asterism.distances import square
from asterism.files import write_json
from asterism.prototypes import paper_grid
from asterism.seeds import number
from asterism.spanning import tree
from bench.record import described, results_file

DIMENSIONS = 512
GROUP = 50


def points(kind: str, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """``count`` points of noise, or of groups whose centres lie about twice as far apart as their points."""
    rng = np.random.default_rng(number(0, "tree bench", kind, count))
    made = rng.standard_normal((count, DIMENSIONS), np.float32)
    if kind == "groups":
        groups = max(1, count // GROUP)
        made += 2 * rng.standard_normal((groups, DIMENSIONS), np.float32)[rng.integers(0, groups, count)]
    return made


def one(kind: str, count: int, dbscan_up_to: int, device: str) -> dict[str, Any]:
    """Seconds and growth of the process's peak memory for one tree."""
    pool = points(kind, count)
    tree(pool[:100], device=device, dense=0)  # what is loaded and compiled once is not counted
    tree(pool[:100])
    load, before, started = os.getloadavg()[0], _peak(), time.perf_counter()
    worked = time.process_time()
    grown = tree(pool, device=device)
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    growth = _peak() - before
    radius, counts = paper_grid(grown)
    row: dict[str, Any] = {
        "bench": "tree",
        "kind": kind,
        "points": count,
        "dimensions": DIMENSIONS,
        "device": device,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(processor, 3),  # of all threads; what a busy machine leaves as it is
        "peak_growth_mib": round(growth / 1024, 1),
        "estimated": int(counts.max()),
        "threads": torch.get_num_threads(),
        "load_before": round(load, 2),
    }
    if count <= dbscan_up_to:
        started = time.perf_counter()
        found = _dbscan(pool, radius)
        row |= {"dbscan_seconds": round(time.perf_counter() - started, 3), "dbscan_agrees": found == counts.tolist()}
    return row


def _dbscan(pool: np.ndarray[Any, np.dtype[np.float32]], radii: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    distances = square(pool)
    runs = (DBSCAN(eps=max(radius, 1e-300), min_samples=2, metric="precomputed").fit(distances) for radius in radii)
    return [len(set(run.labels_.tolist()) - {-1}) for run in runs]


def _peak() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main(
    counts: Annotated[list[int] | None, typer.Option(help="Numbers of points.")] = None,
    kinds: Annotated[str, typer.Option(help="Kinds of points, separated by commas.")] = "noise,groups",
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
    dbscan_up_to: Annotated[int, typer.Option(help="Points from which DBSCAN is not tried.")] = 2_000,
    device: Annotated[str, typer.Option(help="Where torch multiplies the matrices of large pools.")] = "cpu",
    single: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Measures each kind and number of points and prints one line for each."""
    if single:
        print(json.dumps(one(kinds, single, dbscan_up_to, device)))
        return
    found = described()
    for kind in kinds.split(","):
        for count in counts or [1_000, 10_000, 100_000]:
            call = [sys.executable, "-m", "bench.tree", "--single", str(count), "--kinds", kind]
            call += ["--dbscan-up-to", str(dbscan_up_to), "--device", device]
            line = subprocess.run(call, capture_output=True, text=True, check=True).stdout
            print(line.strip(), flush=True)
            found["runs"].append(json.loads(line))
            write_json(out or results_file("tree", "cpu"), found)


if __name__ == "__main__":
    typer.run(main)
