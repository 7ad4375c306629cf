"""What is right and wrong with a source of images, before anybody trains on it."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from asterism.data.decode import Unreadable, array, decode, header
from asterism.data.images import UNLABELLED, ImageSet
from asterism.data.listing import Item, Listing, Parts
from asterism.data.settings import Images
from asterism.data.sources import contents
from asterism.errors import AsterismError

FEWEST_PER_CLASS = 10
FEWEST_PER_PROTOTYPE = 5  # a prototype over fewer images comes close to being one of them
NAMED = 5  # names spelled out in one finding


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, where, and what to do where something should be done."""

    level: Literal["ok", "warning", "error"]
    what: str
    where: str = ""
    fix: str = ""


@dataclass
class Seen:
    """Everything that one walk over the images gathers."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    classes: Counter[int] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)
    tests: int = 0
    bad: list[str] = field(default_factory=list)
    copies: dict[bytes, list[tuple[str, bool]]] = field(default_factory=dict)  # ids, and whether in the test part


def examine(settings: Images, *, clusters: int | None = None, participants: int = 1) -> list[Finding]:
    """What there is to say about the images of the settings; a broken file is a finding, not a stop.

    Args:
        settings: the source, and the shape that it should take.
        clusters: prototypes that each site will make; None leaves that question out.
        participants: how many share the training images evenly, where no manifest says who owns which.
    """
    try:
        found = contents(settings)
        listing = found if isinstance(found, Listing) else as_listing(found)
        seen = walk(listing)
    except AsterismError as error:
        return [Finding("error", error.what, error.where, error.fix)]
    findings = [
        *readable(seen, listing, settings),
        *shapes(seen, settings),
        *classes(seen, listing),
        *duplicates(seen),
    ]
    if clusters is not None:
        findings += crowding(seen, clusters, participants)
    return [*findings, room(seen, settings)]


def as_listing(parts: Parts) -> Listing:
    """Images in memory as a listing, so that one walk serves every source."""
    items = [
        Item(id, array(pixels), label, test=images is parts.test)
        for images in (parts.train, parts.test)
        if isinstance(images, ImageSet)
        for id, pixels, label in zip(images.ids, images.pixels, images.labels.tolist(), strict=True)
    ]
    return Listing(items, len(items), parts.train.classes)


def walk(listing: Listing) -> Seen:
    """What the images are, each read once in full, since a truncated file has a sound header."""
    seen = Seen()
    for item in listing.items:
        try:
            found = header(item)
            decode(item, channels=3, size=None)
        except Unreadable as reason:
            seen.bad.append(f"{item.where} ({reason})")
            continue
        seen.sizes[found.width, found.height] += 1
        seen.modes[found.mode] += 1
        seen.tests += item.test
        if not item.test:
            seen.classes[item.label] += 1
            seen.sites[item.site] += 1
        seen.copies.setdefault(digest(item), []).append((item.id, item.test))
    return seen


def digest(item: Item) -> bytes:
    """A hash of the stored bytes, equal for exact copies."""
    if isinstance(item.content, str):
        with open(item.content, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    content = item.content if isinstance(item.content, bytes) else item.content.tobytes()
    return hashlib.sha256(content).digest()


def readable(seen: Seen, listing: Listing, settings: Images) -> Iterator[Finding]:
    """How many images can be read, and the names of those that cannot."""
    train = sum(seen.classes.values())
    yield Finding("ok", f"{train} training and {seen.tests} test images can be read")
    if seen.bad:
        yield Finding(
            "warning" if settings.skip_bad else "error",
            f"{len(seen.bad)} of {listing.count} images cannot be read",
            some(seen.bad),
            "replace or remove them, or set data.skip_bad = true",
        )


def shapes(seen: Seen, settings: Images) -> Iterator[Finding]:
    """Sizes and colour modes, and whether the settings cope with them."""
    spoken = [f"{width} × {height} ({count})" for (width, height), count in seen.sizes.most_common(NAMED)]
    if len(seen.sizes) > 1 and settings.size is None:
        what = f"{len(seen.sizes)} different sizes: {', '.join(spoken)}"
        yield Finding("error", what, "data.size", "set data.size to bring all images to one size")
    elif seen.sizes:
        yield Finding("ok", f"sizes: {', '.join(spoken)}")
    modes = ", ".join(f"{mode} ({count})" for mode, count in seen.modes.most_common())
    if seen.modes:
        yield Finding("ok", f"colour modes: {modes}")


def classes(seen: Seen, listing: Listing) -> Iterator[Finding]:
    """Training images per class, the thinnest ones by name."""
    counts = {name: seen.classes[i] for i, name in enumerate(listing.classes)}
    nobody = seen.classes[UNLABELLED]
    if nobody:
        yield Finding("ok", f"{nobody} training images without a label")
    if counts:
        low, high = min(counts.values()), max(counts.values())
        yield Finding("ok", f"{len(counts)} classes with {low} to {high} training images each")
    thin = [f"{name} ({count})" for name, count in counts.items() if count < FEWEST_PER_CLASS]
    if thin:
        yield Finding(
            "warning",
            f"classes with fewer than {FEWEST_PER_CLASS} training images: {len(thin)}",
            some(thin),
            "add images, or leave the classes out",
        )


def duplicates(seen: Seen) -> Iterator[Finding]:
    """Exact copies, and those that lie in both parts, which make a test result too good."""
    groups = [group for group in seen.copies.values() if len(group) > 1]
    leaks = [group for group in groups if len({test for _, test in group}) == 2]
    for found, what, fix in (
        (groups, "images stored more than once", "keep one copy of each"),
        (leaks, "images in both the training and the test part", "remove them from one part"),
    ):
        if found:
            names = [" = ".join(id for id, _ in group) for group in found]
            yield Finding("warning", f"{what}: {len(found)}", some(names), fix)


def crowding(seen: Seen, clusters: int, participants: int) -> Iterator[Finding]:
    """Images behind each prototype: a site with n images and K clusters has about n/K of them."""
    train = sum(seen.sites.values())
    named = {site: count for site, count in seen.sites.items() if site}
    sites = named or {f"each of {participants} participants": train // participants}
    thin = [f"{site} ({count} images)" for site, count in sites.items() if count / clusters < FEWEST_PER_PROTOTYPE]
    if thin:
        yield Finding(
            "warning",
            f"{clusters} clusters leave fewer than {FEWEST_PER_PROTOTYPE} images to a prototype",
            some(thin),
            "use fewer clusters, or gather more images",
        )
    else:
        yield Finding("ok", f"enough images for {clusters} clusters at every site")


def room(seen: Seen, settings: Images) -> Finding:
    """Memory that the images take, against the disk space that packing them would need."""
    width, height = max(seen.sizes, default=(0, 0))
    if settings.size is not None:
        width = height = settings.size
    count = sum(seen.sizes.values())
    needed = count * width * height * (1 if settings.colour == "grey" else 3)
    free = shutil.disk_usage(Path.cwd()).free
    what = f"{count} images take about {needed / 2**20:.1f} MiB of memory, and as much disk if packed"
    if free < needed:
        return Finding("warning", what, f"{Path.cwd()}: {free >> 20} MiB free", "free some disk space")
    return Finding("ok", f"{what}; {free >> 20} MiB of disk are free")


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
