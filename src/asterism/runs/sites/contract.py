"""What every site of a federation must agree on before it sends anything: class names, image shape, network.

Class names are the contract, never indices: a site whose folders are named otherwise is told which name is not known,
and which known one is nearest, before a byte about its images has left it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Section
from asterism.data.settings import Images
from asterism.errors import AsterismError
from asterism.model import Architecture

HELLO, WAITING = "hello", "waiting"  # asks that a site answers before and beside the tasks of the algorithms


class Contract(Section):
    """What the server tells a site that says hello."""

    format: Literal[1] = 1
    run: str
    classes: Annotated[tuple[str, ...], Field(min_length=1)]  # known classes, in the order of the head's rows
    novel: tuple[tuple[str, ...], ...] = ()  # true classes of novel stages, where a rehearsal has labels for them
    shape: tuple[int, int, int]  # of every image: channels, height, width
    size: int | None = None  # how a site brings its images to that shape
    colour: Literal["as-stored", "rgb", "grey"] = "as-stored"
    test_fraction: float = 0.25
    model: Architecture = Architecture()
    rows: Annotated[int, Field(ge=1)]  # of the head at the start
    seed: int
    layout: str  # of the network at the start

    @property
    def every_class(self) -> tuple[str, ...]:
        """Known classes, then those of novel stages that a rehearsal names."""
        return tuple(name for names in (self.classes, *self.novel) for name in names)

    def images(self, source: str, root: str = "") -> Images:
        """How a site reads its images."""
        return Images(images=source, root=root, size=self.size, colour=self.colour, test_fraction=self.test_fraction)

    def require_names(self, names: Sequence[str], where: str) -> None:
        """Refuses class names that the federation does not know."""
        for name in names:
            if name not in self.every_class:
                near = difflib.get_close_matches(name, self.every_class, n=1, cutoff=0.5)
                known = f"the federation calls it {near[0]!r}? Rename it" if near else "rename it"
                raise AsterismError(
                    f"class {name!r} is not one of the federation's {len(self.classes)} classes",
                    where=where,
                    fix=f"{known}, or put its images into the folder _unlabelled",
                )

    def require_shape(self, shape: Sequence[int], where: str) -> None:
        """Refuses images of another shape than the network takes."""
        if tuple(shape) != self.shape:
            raise AsterismError(
                f"images of shape {tuple(shape)}, the federation's are {self.shape}",
                where=where,
                fix="ask the server's operator to set data.size and data.colour in the experiment",
            )
