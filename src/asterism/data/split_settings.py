"""Settings of a split: how many classes each stage has, and how a stage's images spread over participants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Section

Positive = Annotated[int, Field(ge=1)]


class Split(Section):
    """Which classes each stage brings, and which participant holds which image.

    The defaults of ``partition``, ``alpha`` and ``participants`` are the paper's setting, read as the common
    code for "Dir(0.1)" reads it. Departure: the paper's literal text is ``client-prior``.
    """

    known: Positive  # C_L, classes of the known stage
    novel: tuple[Positive, ...] = ()  # C_U of each novel stage, in order
    order: Literal["label", "seed"] = "label"  # classes are dealt to stages in label order, or shuffled
    seed: int | None = None  # None: the run's seed
    # "class": each class over participants ~ Dir(α·1_K), sizes differ. "client": each participant's classes
    # ~ Dir(α·1_C), sizes equal. "client-prior": the same with Dir(α·p), where p is the class prior.
    partition: Literal["class", "client", "client-prior", "iid", "by-site"] = "class"
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1  # α of the Dirichlet readings
    participants: Positive = 10  # K; with "by-site" the manifest's participants count instead
    minimum: Annotated[int, Field(ge=0)] = 0  # least images of a participant in the known stage, by redrawing
    file: str = ""  # a saved split: it decides who holds what; known and novel must agree with it
