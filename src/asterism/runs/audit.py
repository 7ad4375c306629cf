"""The reconstruction attack on a finished run: on prototypes that its sites sent, and on ones of known size.

Known sizes show how much the number of images behind a prototype protects them: the means of one image, of two, of
four and so on, each of an image with its nearest neighbours, as a local cluster would hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.algorithms.represent import represented
from asterism.data.augment import plain
from asterism.data.sources import load as load_images
from asterism.data.split import load_split
from asterism.errors import AsterismError
from asterism.experiment import Experiment, load
from asterism.files import write_json
from asterism.memory import novel_share
from asterism.privacy.attack import behind, reconstruct, similarity
from asterism.runs.simulate import Simulation, positions, simulate
from asterism.runs.store import RunFolder, read_checkpoint
from asterism.seeds import generator
from asterism.site import Share, Site

SIZES = (1, 2, 4, 8, 16, 32)
SHOWN = 6  # pairs of pictures kept for each size


@dataclass(frozen=True)
class Target:
    """A prototype under attack, and the real images behind it."""

    prototype: Tensor  # (d,)
    rows: Tensor  # of the site's share
    kind: str  # "made": of exactly so many images; "sent": by the site in the run


def audit(
    folder: Path, *, stage: str = "novel-1", each: int = 8, steps: int = 2000, sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """What the attack came to for each number of images behind a prototype; kept as ``audit.json`` in the folder.

    Args:
        folder: of a run that has begun the stage.
        stage: whose prototypes.
        each: prototypes of each size that are attacked.
        steps: most of the attack.
        sizes: images behind the prototypes that are made.
    """
    experiment = load(folder / "config.toml")
    simulation, sites = _sites(folder, experiment)
    worker = simulation.worker
    worker.load(read_checkpoint(_state_before(folder, simulation, stage)).state.tensors)
    site = max(sites, key=lambda one: len(novel_share(one, stage)))
    share = novel_share(site, stage)
    if len(share) == 0:
        raise AsterismError(f"no participant has images of stage {stage!r}", where=str(folder))
    z = represented(worker, share)
    rng = generator(experiment.seed, "audit", stage)
    targets = [*made(z, sizes, each, rng), *_sent(site, z, stage, each)]
    images = plain(share.images.pixels[share.indices])
    prototypes = torch.stack([target.prototype for target in targets])
    found = reconstruct(worker.network.represent, prototypes, share.images.shape, rng=rng, steps=steps)
    told = {
        "format": 1, "run": experiment.name, "seed": experiment.seed, "stage": stage, "site": site.name,
        "steps": found.steps, "groups": _groups(targets, found.images, found.errors, images),
    }  # fmt: skip
    write_json(folder / "audit.json", told)
    return told


def without_pictures(told: Mapping[str, Any]) -> dict[str, Any]:
    """What an attack came to, in numbers alone, which may be published."""
    groups = [{name: value for name, value in group.items() if name != "pictures"} for group in told["groups"]]
    return {**told, "groups": groups}


def _sites(folder: Path, experiment: Experiment) -> tuple[Simulation, list[Site]]:
    """The run's simulation and its participants, with what they had kept at its end."""
    dataset = load_images(experiment.data, seed=experiment.seed).dataset
    if not (folder / "split.json").exists():
        raise AsterismError("the run has not begun", where=str(folder), fix=f"asterism resume {folder}")
    kept = RunFolder(folder)
    kept.newest()  # puts the participants' stores back
    split = load_split(folder / "split.json", dataset.train)
    simulation = simulate(experiment, dataset=dataset, split=split, stores=kept.stores)
    images = dataset.train.to(simulation.worker.device)
    targets = positions(images, [name for stage in split.stages for name in stage.classes])
    shares = {stage.name: stage.shares for stage in split.stages}

    def site(name: str) -> Site:
        def share(stage: str) -> Share:
            return Share(images, targets, shares[stage][name].to(targets.device))

        return Site(name, share, kept.stores.of(name), simulation.worker)

    return simulation, [site(name) for name in split.participants]


def _state_before(folder: Path, simulation: Simulation, stage: str) -> Path:
    """The state that a stage began with: the last of the stage before it."""
    names = [known.name for known in simulation.stages]
    if stage not in names[1:]:
        raise AsterismError(f"no novel stage {stage!r} in this run", where=str(folder), fix=f"one of {names[1:]}")
    before = names[names.index(stage) - 1]
    states = sorted(folder.glob(f"states/{before}-round*.safetensors"))
    if not states:
        raise AsterismError(f"the run kept no state of stage {before!r}", where=str(folder))
    return states[-1]


def made(z: Tensor, sizes: Sequence[int], each: int, rng: torch.Generator) -> list[Target]:
    """Prototypes of exactly so many images, around images that are drawn."""
    drawn = torch.randperm(len(z), generator=rng)[:each].tolist()
    groups = [behind(z, first, size) for size in sizes if size <= len(z) for first in drawn]
    return [Target(z[rows].mean(dim=0), rows, "made") for rows in groups]


def _sent(site: Site, z: Tensor, stage: str, each: int) -> list[Target]:
    """Prototypes that the site sent, drawn evenly over their sizes, with the images that are nearest to each."""
    kept = site.store.get(f"prototypes/{stage}")
    if kept is None or len(kept["centres"]) == 0:
        return []
    centres = kept["centres"].to(z)
    nearest = torch.cdist(z, centres).argmin(dim=1)
    held = torch.bincount(nearest, minlength=len(centres)).cpu().numpy()
    order = np.argsort(held, kind="stable")[(held == 0).sum() :]
    chosen = order[np.linspace(0, len(order) - 1, min(each, len(order))).round().astype(int)]
    return [Target(centres[c], (nearest == int(c)).nonzero().flatten(), "sent") for c in chosen]


def _groups(targets: Sequence[Target], recovered: Tensor, errors: Tensor, images: Tensor) -> list[dict[str, Any]]:
    """Scores and some pictures by kind and number of images behind a prototype."""
    keys = dict.fromkeys((target.kind, len(target.rows)) for target in targets)
    return [
        _group(kind, size, [i for i, t in enumerate(targets) if (t.kind, len(t.rows)) == (kind, size)],
               targets, recovered, errors, images)
        for kind, size in sorted(keys)
    ]  # fmt: skip


def _group(
    kind: str, size: int, members: Sequence[int], targets: Sequence[Target], recovered: Tensor, errors: Tensor,
    images: Tensor,
) -> dict[str, Any]:  # fmt: skip
    scores, pictures = list[dict[str, float]](), list[dict[str, Any]]()
    mean_image = images.mean(dim=0, keepdim=True)
    for i in members:
        real = images[targets[i].rows]
        found, blind = similarity(recovered[i : i + 1], real), similarity(mean_image, real)
        scores.append({
            "match": float(errors[i]), "mse": float(found.error), "psnr": float(found.psnr),
            "cosine": float(found.cosine), "blind_mse": float(blind.error), "blind_psnr": float(blind.psnr),
        })  # fmt: skip
        if len(pictures) < SHOWN:
            shown = {"recovered": recovered[i], "nearest": real[found.nearest[0]]}
            pictures.append({name: _bytes(image) for name, image in shown.items()})
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    return {"kind": kind, "images": size, "prototypes": len(members), **means, "pictures": pictures}


def _bytes(image: Tensor) -> list[Any]:
    """An image (c, h, w) as whole numbers from 0 to 255."""
    pixels: list[Any] = (255 * image.detach().cpu()).round().to(torch.uint8).tolist()
    return pixels
