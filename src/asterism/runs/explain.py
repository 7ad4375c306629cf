"""What a novel stage of a simulation found, as one small file that a report can draw: ``explain/<stage>.json``.

It holds test images and single participants' prototypes, so a simulation alone can write it. True classes name what
is drawn and decide nothing: neither the estimate, nor the plane of the map, nor which exemplars are chosen.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asterism.algorithms.discover import Discovery
from asterism.algorithms.represent import represented
from asterism.errors import AsterismError
from asterism.estimation import estimate
from asterism.evaluation import Reading, calibrated
from asterism.experiment import Novel
from asterism.files import write_json
from asterism.flow import State
from asterism.prototypes import global_prototypes
from asterism.runs.simulate import Simulation
from asterism.runs.store import read_tensors
from asterism.seeds import number
from asterism.site import Share

FORMAT = 1
MOST_SAMPLES = 500
MOST_PROTOTYPES = 2000
MOST_EXEMPLARS = 8  # of a discovered class
MOST_PICTURES = 320  # of all of them
SIDE = 48  # pixels

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """The prototypes that the participants sent: ``centres`` (n, d), ``sizes`` (n,) and whose each is.

    ``layout`` identifies the network that every participant represented its images with.
    """

    sites: tuple[str, ...]
    centres: Floats
    sizes: NDArray[np.int64]
    layout: str


@dataclass(frozen=True)
class Found:
    """A stage's end: test images of all classes met, as its model represents and (joint reading) predicts them.

    ``names`` are those of the true classes; of these and of ``rows``, those from ``first`` and ``before`` on are new.
    """

    share: Share
    z: Floats
    predicted: NDArray[np.int64]
    targets: NDArray[np.int64]
    names: tuple[str, ...]
    first: int
    rows: Floats
    row_names: tuple[str, ...]
    before: int


def explain(folder: Path, simulation: Simulation, state: State, stage: str) -> None:
    """``explain/<stage>.json`` holds what the stage's prototypes said and what its rows came to stand for.

    Without the recorded prototypes (``machine.record = "none"``, or a method that asks for none) nothing is written.
    """
    recorded = folder / "answers" / f"{stage}-round000-prototypes.safetensors"
    if not recorded.exists():
        return
    pool = _pool(recorded)
    found = _found(simulation, state, stage, pool.layout)
    novel = simulation.experiment.novel[[s.name for s in simulation.stages[1:]].index(stage)]
    begin = _begin(pool, novel.discovery, len(found.rows) - found.before, simulation.experiment.seed, stage)
    explained = {
        "format": FORMAT,
        "stage": stage,
        "estimate": _estimate(pool, novel, found.rows[: found.before], simulation.experiment.seed, stage),
        **_map(pool, found, begin),
        "exemplars": list(_exemplars(found)),
    }
    write_json(folder / "explain" / f"{stage}.json", explained)


def project(*parts: Floats) -> list[Floats]:
    """Each part (n, d) in the plane (n, 2) in which all of them together vary most; the signs are settled."""
    whole = np.concatenate(parts).astype(np.float64)
    centred = whole - whole.mean(axis=0)
    axes = np.zeros((2, whole.shape[1]))
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    # A direction and its opposite explain as much: let its largest entry be positive.
    largest = np.abs(directions).argmax(axis=1, keepdims=True)
    axes[: len(directions)] = directions * np.where(np.take_along_axis(directions, largest, axis=1) < 0, -1, 1)
    return np.split(centred @ axes.T, np.cumsum([len(part) for part in parts])[:-1])


def nearest(z: Floats, row: Floats, candidates: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Those of ``candidates``, at most ``most``, whose representations are nearest to ``row``, the nearest first."""
    distances = np.linalg.norm(z[candidates] - row, axis=1)
    return candidates[np.argsort(distances, kind="stable")[:most]]


def png(pixels: Tensor) -> str:
    """One image (c, h, w) as a PNG in base64, no side longer than ``SIDE``, and never larger than it was."""
    array = pixels.permute(1, 2, 0).cpu().numpy()
    image = Image.fromarray(array if len(pixels) == 3 else array[:, :, 0])
    image.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode("ascii")


def _pool(recorded: Path) -> Pool:
    tensors, described = read_tensors(recorded)
    sent = [name for name, reply in described["answers"].items() if reply["weight"] > 0]
    centres = [tensors[f"{name}/centres"].numpy() for name in sent]
    return Pool(
        tuple(name for name, own in zip(sent, centres, strict=True) for _ in own),
        np.concatenate(centres),
        np.concatenate([tensors[f"{name}/sizes"].numpy() for name in sent]).astype(np.int64),
        described["version"]["layout"],
    )


def _found(simulation: Simulation, state: State, stage: str, layout: str) -> Found:
    simulation.worker.load(state.tensors)
    names, test = simulation.classes_met(stage), simulation.test
    share = replace(test, indices=test.indices[test.targets[test.indices] < len(names)])
    z = represented(simulation.worker, share)
    rows = simulation.worker.network.prototypes[: len(state.classes)].detach()
    known = len(simulation.stages[0].classes)
    calibration = simulation.experiment.evaluation.calibration
    logits = calibrated(z, rows, known, calibration, Reading.of(state.tensors, z.device))
    brought = next(len(s.classes) for s in simulation.stages if s.name == stage)
    return Found(
        share=share,
        z=z.cpu().numpy(),
        predicted=logits.argmax(dim=1).cpu().numpy(),
        targets=share.targets[share.indices].cpu().numpy(),
        names=names,
        first=len(names) - brought,
        rows=rows.cpu().numpy(),
        row_names=state.classes,
        # The prototypes were asked for with the layout that the stage was entered with.
        before=next(n for n in range(len(rows) + 1) if simulation.worker.layout.with_rows(n).id == layout),
    )


def _estimate(pool: Pool, novel: Novel, known: Floats, seed: int, stage: str) -> dict[str, Any] | None:
    """What the stage's estimator makes of the pool, also where the number was given; None of a pool it refuses."""
    settings = novel.discovery.estimator
    try:
        explained = estimate(
            pool.centres,
            participants=pool.sites,
            prototypes=True,
            method=settings.name,
            settings=settings,
            known=known,
            sizes=pool.sizes,
            seed=number(seed, "estimate", stage),  # as the stage drew
        )
    except AsterismError:
        return None
    # Without its measured time, so that equal runs have equal files.
    return {name: value for name, value in explained.as_json().items() if name != "seconds"}


def _begin(pool: Pool, discovery: Discovery, count: int, seed: int, stage: str) -> Floats:
    """The global prototypes as ``discover`` made them of the same pool, in the order of the rows they began."""
    weights = pool.sizes if discovery.weighted else None
    return global_prototypes(pool.centres, count, seed=number(seed, "global prototypes", stage), weights=weights)


def _map(pool: Pool, found: Found, begin: Floats) -> dict[str, list[dict[str, Any]]]:
    """Prototypes, discovered rows at both ends of the stage, and test images of its classes in one plane."""
    rows = found.rows[found.before :]
    kept = np.sort(np.argsort(-pool.sizes, kind="stable")[:MOST_PROTOTYPES])
    drawn = evenly(np.flatnonzero(found.targets >= found.first), MOST_SAMPLES)
    drawn = drawn[np.argsort(found.targets[drawn], kind="stable")]
    own = [int(np.linalg.norm(begin - centre, axis=1).argmin()) for centre in pool.centres[kept]]
    prototypes, merged, ends, samples = project(pool.centres[kept], begin, rows, found.z[drawn])
    return {
        "pool": [
            {"site": pool.sites[i], "size": int(pool.sizes[i]), **_point(place), "row": row}
            for i, place, row in zip(kept, prototypes, own, strict=True)
        ],
        "rows": [
            {"name": name, **_point(end), "begin": _point(start)}
            for name, start, end in zip(found.row_names[found.before :], merged, ends, strict=True)
        ],
        "samples": [
            {**_point(place), "class": found.names[found.targets[i]], "row": found.row_names[found.predicted[i]]}
            for i, place in zip(drawn, samples, strict=True)
        ],
    }


def evenly(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most ``most`` of the values, evenly spaced among them."""
    return values[:: max(1, -(-len(values) // most))]


def _exemplars(found: Found) -> Iterator[dict[str, Any]]:
    """The test images nearest to each discovered row, among all those that are predicted as it."""
    new = range(found.before, len(found.rows))
    most = max(1, min(MOST_EXEMPLARS, MOST_PICTURES // max(1, len(new))))
    for row in new:
        chosen = nearest(found.z, found.rows[row], np.flatnonzero(found.predicted == row), most)
        indices = found.share.indices[torch.from_numpy(chosen).to(found.share.indices.device)]
        images = [
            {"png": png(pixels), "class": found.names[found.targets[i]]}
            for i, pixels in zip(chosen, found.share.images.pixels[indices], strict=True)
        ]
        yield {"row": found.row_names[row], "images": images}


def _point(place: Floats) -> dict[str, float]:
    return {"x": round(float(place[0]), 4), "y": round(float(place[1]), 4)}
