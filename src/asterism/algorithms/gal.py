"""Settings of GAL, the paper's method for novel classes; the built-in configurations carry the paper's values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Section


class Gal(Section):
    """Novel class learning by GAL. Defaults are the paper's."""

    name: Literal["gal"] = "gal"
    tau: Annotated[float, Field(gt=0)] = 0.07  # τ, Eq. 9
    beta: Annotated[float, Field(ge=0, le=1)] = 0.99  # β, Eq. 10
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.5  # r, Eq. 5
    radius_steps: Annotated[int, Field(ge=1)] = 50  # E, Eq. 8
