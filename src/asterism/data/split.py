"""Who learns what, when: each stage's classes and each participant's images. Files, not seeds, are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from asterism.config import Section, validate
from asterism.data.images import UNLABELLED, ImageSet
from asterism.data.partition import PARTITIONS, Ints, by_site
from asterism.data.split_settings import Split
from asterism.errors import AsterismError
from asterism.files import write_text
from asterism.seeds import number

KNOWN = "known"
TRIES = 100


class Fingerprint(Section):
    """What a data set must look like for a split to be about it."""

    images: int
    classes: tuple[str, ...]
    labels: str


@dataclass(frozen=True, eq=False)
class StageSplit:
    """One stage: its class names in the order of the head's rows, and each participant's sorted indices."""

    name: str
    classes: tuple[str, ...]
    shares: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class FederationSplit:
    """Every participant's images in every stage; a stage names all participants, also those with none."""

    participants: tuple[str, ...]
    stages: tuple[StageSplit, ...]
    settings: Split
    data: Fingerprint


def make_split(train: ImageSet, settings: Split, seed: int) -> FederationSplit:
    """The split that ``settings`` describe, the same for the same images and seed.

    Each stage draws from its own generator, so another stage never changes an earlier one. Images without a
    label belong to no stage, except with ``by-site``: there they join their participant's share of the last
    novel stage (and stay unused where there is none), so a further stage takes them over.
    """
    if settings.file:
        return _agreeing(load_split(Path(settings.file), train), settings)
    seed = seed if settings.seed is None else settings.seed
    settings = settings.model_copy(update={"seed": seed})
    sited = settings.partition == "by-site"
    participants, site_of = _sites(train) if sited else (_names(settings.participants), None)
    labels = train.labels.cpu().numpy()
    stages = []
    for name, chosen, pool in _pools(train, settings, seed):
        owners = _drawn(labels[pool], settings, seed, name) if site_of is None else site_of[pool]
        if name == KNOWN:
            _require_minimum(owners, len(participants), settings.minimum)
        shares = {site: torch.from_numpy(pool[owners == k]) for k, site in enumerate(participants)}
        stages.append(StageSplit(name, tuple(train.classes[c] for c in chosen), shares))
    return FederationSplit(participants, tuple(stages), settings, fingerprint(train))


def table(split: FederationSplit, labels: Tensor, n_classes: int) -> Ints:
    """Labelled images by stage, participant and class: (stages, participants, n_classes)."""
    of_image = labels.cpu().numpy()
    counts = np.zeros((len(split.stages), len(split.participants), n_classes), dtype=np.int64)
    for s, stage in enumerate(split.stages):
        for k, participant in enumerate(split.participants):
            held = of_image[stage.shares[participant].numpy()]
            counts[s, k] = np.bincount(held[held != UNLABELLED], minlength=n_classes)
    return counts


def check(split: FederationSplit, train: ImageSet) -> None:
    """Every image is used at most once, and the known stage holds exactly the images of its classes."""
    _check_names(split)
    n = len(train)
    used = torch.cat([share for stage in split.stages for share in stage.shares.values()])
    _refuse(split, used[(used < 0) | (used >= n)], f"is not among the {n} images")
    _refuse(split, (torch.bincount(used, minlength=n) > 1).nonzero(), "is used more than once")
    known = split.stages[0]
    rows = torch.tensor([split.data.classes.index(name) for name in known.classes], dtype=torch.int64)
    due = torch.isin(train.labels.cpu(), rows)
    held = torch.zeros(n, dtype=torch.bool)
    held[torch.cat(list(known.shares.values()))] = True
    _refuse(split, (due & ~held).nonzero(), "is of a known class but not in the known stage")
    _refuse(split, (held & ~due).nonzero(), "is in the known stage but of no known class")


def fingerprint(train: ImageSet) -> Fingerprint:
    """Number of images, class names, and a digest of the labels in their order."""
    labels = hashlib.sha256(train.labels.cpu().numpy().astype("<i8").tobytes()).hexdigest()
    return Fingerprint(images=len(train), classes=train.classes, labels=labels)


class _StageFile(Section):
    name: str
    classes: tuple[str, ...]
    shares: dict[str, list[Annotated[int, Field(ge=0, lt=2**63)]]]


class _SplitFile(Section):
    format: Literal[1]
    data: Fingerprint
    settings: Split
    participants: tuple[str, ...]
    stages: Annotated[tuple[_StageFile, ...], Field(min_length=1)]
    counts: dict[str, dict[str, dict[str, int]]]  # for readers; by stage, participant and class


def save(split: FederationSplit, path: Path, train: ImageSet) -> None:
    """``path`` holds the split, or what it held before; with it how many images of which class everybody has."""
    stages = tuple(
        _StageFile(name=s.name, classes=s.classes, shares={k: v.tolist() for k, v in s.shares.items()})
        for s in split.stages
    )
    file = _SplitFile(
        format=1,
        data=split.data,
        settings=split.settings,
        participants=split.participants,
        stages=stages,
        counts=_counts_by_name(split, train),
    )
    write_text(path, file.model_dump_json() + "\n")


def _counts_by_name(split: FederationSplit, train: ImageSet) -> dict[str, dict[str, dict[str, int]]]:
    counts = table(split, train.labels, len(train.classes))
    return {
        stage.name: {
            site: {train.classes[c]: int(counts[s, k, c]) for c in np.flatnonzero(counts[s, k])}
            for k, site in enumerate(split.participants)
        }
        for s, stage in enumerate(split.stages)
    }


def load_split(path: Path, train: ImageSet) -> FederationSplit:
    """The split kept in ``path``, refused where it is damaged or about other images than ``train``."""
    file = validate(_SplitFile, _read_json(path), source=str(path))
    _require_same_data(file.data, fingerprint(train), path)
    stages = tuple(
        StageSplit(s.name, s.classes, {k: torch.tensor(sorted(v), dtype=torch.int64) for k, v in s.shares.items()})
        for s in file.stages
    )
    split = FederationSplit(file.participants, stages, file.settings, file.data)
    try:
        check(split, train)
    except AsterismError as error:
        raise AsterismError(f"damaged split: {error.what}", where=f"{error.where} in {path}") from None
    return split


def _pools(train: ImageSet, settings: Split, seed: int) -> Iterator[tuple[str, Ints, Ints]]:
    """Name, class numbers and image indices of each stage."""
    sizes = (settings.known, *settings.novel)
    if sum(sizes) > len(train.classes):
        what = f"the stages ask for {sum(sizes)} classes, the data has {len(train.classes)}"
        raise AsterismError(what, where="split.novel" if settings.novel else "split.known")
    labels = train.labels.cpu().numpy()
    order = np.arange(len(train.classes))
    if settings.order == "seed":
        order = np.random.default_rng(number(seed, "class order")).permutation(order)
    for s, chosen in enumerate(np.split(order, np.cumsum(sizes))[:-1]):
        held = np.isin(labels, chosen)
        if settings.partition == "by-site" and 0 < s == len(settings.novel):
            held |= labels == UNLABELLED
        yield f"novel-{s}" if s else KNOWN, chosen, np.flatnonzero(held)


def _drawn(labels: Ints, settings: Split, seed: int, stage: str) -> Ints:
    """The owner of each image of a stage; the known stage is redrawn until everybody has the minimum."""
    rng = np.random.default_rng(number(seed, "partition", stage))
    partition = PARTITIONS[settings.partition]
    owners = partition(labels, settings.participants, settings.alpha, rng)
    for _ in range(TRIES - 1 if stage == KNOWN else 0):
        if np.bincount(owners, minlength=settings.participants).min() >= settings.minimum:
            break
        owners = partition(labels, settings.participants, settings.alpha, rng)
    return owners


def _names(participants: int) -> tuple[str, ...]:
    width = max(2, len(str(participants)))
    return tuple(f"site-{k:0{width}d}" for k in range(1, participants + 1))


def _sites(train: ImageSet) -> tuple[tuple[str, ...], Ints]:
    """The manifest's participants and the participant number of every image."""
    if not train.sites:
        fix = "fill in the participant column of a manifest, or choose another partition"
        raise AsterismError("the images name no participants", where="split.partition", fix=fix)
    if "" in train.sites:
        without = train.ids[train.sites.index("")]
        raise AsterismError("an image has no participant", where=without, fix="fill in its participant column")
    return by_site(train.sites)


def _require_minimum(owners: Ints, participants: int, minimum: int) -> None:
    least = int(np.bincount(owners, minlength=participants).min())
    if least < minimum:
        what = f"a participant has {least} known images, fewer than {minimum}"
        fix = f"lower it, raise split.alpha, or take fewer participants ({TRIES} draws are tried)"
        raise AsterismError(what, where="split.minimum", fix=fix)


def _agreeing(split: FederationSplit, settings: Split) -> FederationSplit:
    """``split``, or an error where a run's settings state other class numbers than the file it names."""
    known, *novel = (len(stage.classes) for stage in split.stages)
    if (known, tuple(novel)) != (settings.known, settings.novel):
        what = f"known = {settings.known} and novel = {list(settings.novel)} differ from the split file"
        raise AsterismError(what, where=settings.file, fix=f"the file has known = {known} and novel = {novel}")
    return split


def _check_names(split: FederationSplit) -> None:
    expected = [f"novel-{s}" if s else KNOWN for s in range(len(split.stages))]
    if [stage.name for stage in split.stages] != expected:
        raise AsterismError(f"the stages must be {', '.join(expected)}", where="stages")
    left = set(split.data.classes)
    for stage in split.stages:
        if sorted(stage.shares) != sorted(split.participants):
            raise AsterismError("a stage must name every participant once", where=stage.name)
        for name in stage.classes:
            if name not in left:
                raise AsterismError(f"class {name!r} is unknown or in two stages", where=stage.name)
            left.remove(name)


def _refuse(split: FederationSplit, wrong: Tensor, what: str) -> None:
    """Nothing where no image is ``wrong``; otherwise an error that names the first and who holds it."""
    if not wrong.numel():
        return
    index = int(wrong.flatten()[0])
    held = [
        f"{stage.name}/{participant}"
        for stage in split.stages
        for participant, share in stage.shares.items()
        for _ in range(int((share == index).sum()))
    ]
    raise AsterismError(f"image {index} {what}", where=", ".join(held) or "no participant")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AsterismError("no such split file", where=str(path)) from None
    except ValueError as error:
        raise AsterismError(f"not a split file: {error}", where=str(path)) from None
    if not isinstance(content, dict):
        raise AsterismError("not a split file: it holds no table", where=str(path))
    return content


def _require_same_data(kept: Fingerprint, given: Fingerprint, path: Path) -> None:
    if kept == given:
        return
    what = "the split was made for the same images with other labels or in another order"
    if kept.images != given.images:
        what = f"the split was made for {kept.images} images, these are {given.images}"
    elif kept.classes != given.classes:
        what = "the split was made for other class names, or the same in another order"
    raise AsterismError(what, where=str(path), fix="name the data set it was made for, or make a new split")
