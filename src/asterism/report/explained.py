"""``explain/<stage>.json``: what a novel stage of a simulation found, as a report reads it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Section

Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*=*$")]


class CurveRecord(Section, extra="ignore"):
    """A number of dense regions at each radius."""

    radius: tuple[float, ...]
    count: tuple[int, ...]


class PlateauRecord(Section, extra="ignore"):
    """The widest range of radii that supports the estimate."""

    start: float
    end: float
    width: float


class SupportRecord(Section, extra="ignore"):
    """One site's part in the estimate."""

    site: str
    prototypes: int
    withheld: int = 0
    without: int | None = None


class SearchRecord(Section, extra="ignore"):
    """Numbers of classes that a method weighed, the score of each, and those that score nearly as well as the best."""

    classes: tuple[int, ...]
    score: tuple[float, ...]
    near: tuple[int, int]


class EstimateRecord(Section, extra="ignore"):
    """What an estimator made of the pool, as ``asterism estimate --json`` says it."""

    method: str
    estimated: int
    interval: tuple[int, int]
    prototypes: int
    curve: CurveRecord
    grid: CurveRecord
    exact: int
    plateau: PlateauRecord | None = None
    verdict: str
    sites: tuple[SupportRecord, ...] = ()
    about: str = ""
    search: SearchRecord | None = None


class Place(Section, extra="ignore"):
    """A point of the map."""

    x: float
    y: float


class Prototype(Place, extra="ignore"):
    """A local prototype, how many images are behind it, and the position of the global one it belongs to."""

    site: str
    size: int
    row: int


class Row(Place, extra="ignore"):
    """A discovered row of the head as the stage left it, and the global prototype it began as."""

    name: str
    begin: Place


class Seen(Place, extra="ignore"):
    """A test image: its true class, and the row of the head it is predicted as."""

    true: Annotated[str, Field(alias="class")]
    row: str


class Exemplar(Section, extra="ignore"):
    """A test image near a discovered row, and its true class."""

    png: Base64
    true: Annotated[str, Field(alias="class")]


class RowExemplars(Section, extra="ignore"):
    """The test images nearest to a discovered row."""

    row: str
    images: tuple[Exemplar, ...]


class Explained(Section, extra="ignore"):
    """The whole file; ``estimate`` is None where the pool was too poor for one."""

    format: Literal[1]
    stage: str
    estimate: EstimateRecord | None
    pool: tuple[Prototype, ...]
    rows: tuple[Row, ...]
    samples: tuple[Seen, ...]
    exemplars: tuple[RowExemplars, ...]
