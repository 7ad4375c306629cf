"""Evaluation as count tables, so that a federation can add them up: true class × predicted row.

Two protocols, always both. *Headwise*, the paper's: a known image is read from the known rows only, a novel one from
the novel rows only. *Joint*, what a user of the model gets: one arg-max over every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from asterism import metrics
from asterism.data.augment import plain
from asterism.flow import Options, Reply, State, Sum, Tensors
from asterism.model import READING
from asterism.site import Share, Site
from asterism.worker import Worker

Tables = Mapping[str, np.ndarray]
Calibration = Literal["raw", "matched", "cosine"]


@dataclass(frozen=True)
class Reading:
    """How a method reads its head where it is not by dot products alone.

    ``bias`` (rows,) is added to them; ``joint`` (rows, d) is a head of its own for the joint reading.
    """

    bias: Tensor | None = None
    joint: Tensor | None = None

    @classmethod
    def of(cls, tensors: Tensors, device: torch.device) -> Reading:
        """The reading that a state's tensors ask for."""
        found = (tensors.get(name) for name in READ_BY)
        return cls(*(value if value is None else value.to(device) for value in found))


READ_BY = ("bias", "joint")
DOT_PRODUCTS = Reading()


@torch.no_grad()
def count_tables(
    worker: Worker,
    share: Share,
    *,
    known: int,
    classes: int,
    rows: int,
    calibration: Calibration = "raw",
    reading: Reading = DOT_PRODUCTS,
    batch: int = READING,
) -> dict[str, Tensor]:
    """Float tables of counts: ``known`` (C_L × C_L), ``novel`` (C_U × novel rows), ``joint`` (C × rows).

    Of the ``classes`` true classes and ``rows`` head rows, those from ``known`` on are novel. Rows of the network
    past ``rows`` stand for no class (turned images) and are never predicted. Images without a label are left out.
    """
    worker.network.eval()
    tables = {name: table.to(worker.device) for name, table in empty_tables(known, classes, rows).items()}
    for chosen in torch.split(labelled(share), batch):
        targets = share.targets[chosen]
        z, prototypes = worker.network.represent(plain(share.images.pixels[chosen])), worker.network.prototypes[:rows]
        logits = biased(z, prototypes, reading)
        _count(tables["joint"], targets, calibrated(z, prototypes, known, calibration, reading))
        is_known = targets < known
        _count(tables["known"], targets[is_known], logits[is_known, :known])
        _count(tables["novel"], targets[~is_known] - known, logits[~is_known, known:])
    return tables


def empty_tables(known: int, classes: int, rows: int) -> dict[str, Tensor]:
    """The tables of no image at all."""
    return {
        "known": torch.zeros(known, known),
        "novel": torch.zeros(classes - known, rows - known),
        "joint": torch.zeros(classes, rows),
    }


def biased(z: Tensor, prototypes: Tensor, reading: Reading) -> Tensor:
    """Dot products (n, rows), with the bias of the reading where it has one."""
    logits = z @ prototypes.T
    return logits if reading.bias is None else logits + reading.bias


def calibrated(
    z: Tensor,
    prototypes: Tensor,
    known: int,
    calibration: Calibration,
    reading: Reading = DOT_PRODUCTS,
) -> Tensor:
    """Logits by which known and novel rows compete: as they are, with matched norms, or as cosines.

    Novel rows start as centroids of representations, which are several times as long as known rows: compared as
    they are, one side wins almost everything. A joint head of its own was trained over all classes: it needs none.
    """
    if reading.joint is not None:
        return z @ reading.joint.T
    if calibration == "cosine":
        return normalize(z, dim=1) @ normalize(prototypes, dim=1).T
    logits = biased(z, prototypes, reading)
    if calibration == "raw" or len(prototypes) == known:
        return logits
    norms = prototypes.norm(dim=1)
    scale = norms[:known].mean() / norms[known:].mean().clamp_min(torch.finfo(norms.dtype).tiny)
    return torch.cat([logits[:, :known], logits[:, known:] * scale], dim=1)


def labelled(share: Share) -> Tensor:
    """The indices of a share's images whose class is known."""
    return share.indices[share.targets[share.indices] >= 0]


def _count(table: Tensor, targets: Tensor, logits: Tensor) -> None:
    if len(targets) == 0 or logits.shape[1] == 0:
        return
    cells = targets * table.shape[1] + logits.argmax(dim=1)
    table.view(-1).add_(torch.bincount(cells, minlength=table.numel()).to(table))


def evaluate(site: Site, tensors: Tensors, options: Options) -> Reply:
    """A participant's count tables on its own labelled images of a stage."""
    share = site.share(str(options["stage"]))
    images = len(labelled(share))
    if images == 0:
        return Reply({}, weight=0.0)
    site.worker.load(tensors)
    known, classes, rows = (int(options[name]) for name in ("known", "classes", "rows"))
    calibration = cast(Calibration, options["calibration"])
    tables = count_tables(
        site.worker, share, known=known, classes=classes, rows=rows, calibration=calibration,
        reading=Reading.of(tensors, site.worker.device),
    )  # fmt: skip
    return Reply(tables, metrics={"samples": float(images)})


def ask_evaluation(
    state: State, participants: tuple[str, ...], known: int, classes: int, calibration: Calibration = "raw"
) -> Sum:
    """The ask by which a real federation evaluates a state; its total holds the summed tables."""
    needed = ("parameters", "buffers", "counters", *READ_BY)
    model = {name: state.tensors[name] for name in needed if name in state.tensors}
    options: Options = {
        "stage": state.stage,
        "known": known,
        "classes": classes,
        "rows": len(state.classes),
        "calibration": calibration,
    }
    return Sum(participants, "evaluate", model, state.version, options)


def measure(
    state: State, worker: Worker, test: Share, known: int, classes: int, calibration: Calibration = "raw"
) -> Tables:
    """Count tables of a state on test images, as NumPy."""
    worker.load(state.tensors)
    tables = count_tables(
        worker, test, known=known, classes=classes, rows=len(state.classes), calibration=calibration,
        reading=Reading.of(state.tensors, worker.device),
    )  # fmt: skip
    return {name: table.cpu().numpy() for name, table in tables.items()}


def by_stage(tables: Tables, sizes: Sequence[int]) -> list[float | None]:
    """Headwise accuracy, in percent, on the classes that each stage brought; ``sizes``: true classes per stage.

    Novel classes of all stages are matched to the union of novel rows at once.
    """
    novel = tables["novel"]
    assignment = metrics.hungarian(novel)
    found: list[float | None] = [metrics.accuracy(tables["known"])]
    start = 0
    for size in sizes[1:]:
        part = np.zeros_like(novel)
        part[start : start + size] = novel[start : start + size]
        found.append(metrics.assigned_accuracy(part, assignment))
        start += size
    return found


def scores(tables: Tables) -> dict[str, object]:
    """Every figure that ``results.json`` holds about one moment, in percent; None where there is nothing to say."""
    known = len(tables["known"])
    novel = tables["novel"]
    headwise, joint = metrics.headwise(tables["known"], novel), metrics.joint(tables["joint"], known)
    return {
        "headwise": {"known": headwise.known, "novel": headwise.novel, "all": headwise.all},
        "joint": {"known": joint.known, "novel": joint.novel, "all": joint.all},
        "nmi": 100 * metrics.normalised_mutual_information(novel) if novel.size and novel.sum() else None,
        "ari": 100 * metrics.adjusted_rand(novel) if novel.size and novel.sum() else None,
    }
