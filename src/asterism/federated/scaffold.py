"""SCAFFOLD (Karimireddy et al., 2020): control variates take the drift out of every local step.

At the client, w ← w − lr·(g − c_i + c); after K steps c_i ← c_i − c + (w_global − w)/(K·lr). At the server,
c ← c + (1/N)·Σ Δc_i. Variates cover parameters only, never BatchNorm statistics. Departures (docs/departures.md):
without momentum by default, because the (w_global − w)/(K·lr) of a step with momentum is no mean gradient; variates
begin anew with every stage, whose head is another; under EMA the extractor's correction is scaled; new rows
begin with a variate of zero; with replies weighted by size, Δc_i are too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asterism.config import Section
from asterism.flow import State, Tensors, Total
from asterism.site import Site
from asterism.training import Term
from asterism.worker import Worker

OWN = "scaffold"


class Scaffold(Section):
    """Settings of SCAFFOLD."""

    name: Literal["scaffold"] = "scaffold"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # m > 0 counts a step as lr/(1 − m)


def start(site: Site, tensors: Tensors, p: Scaffold, kept: float = 1.0) -> Term:
    """Corrects each gradient by c − c_i and, at the end, sends Δc_i and keeps the new c_i.

    Where the server draws the extractor back after the round (EMA), drift there is mostly undone by that already:
    correcting it in full as well was seen to diverge, so it is corrected by the share ``kept`` of its movement.
    """
    origin = tensors["parameters"].to(site.worker.device)
    c = _variate(tensors, origin)
    c_i = _variate(site.store.get(OWN, {}), origin)
    correction = site.worker.hold("correction", c - c_i)
    correction[: site.worker.layout.extractor_size] *= kept

    def correct(gradient: Tensor, parameters: Tensor) -> None:
        gradient.add_(correction)

    def finish(worker: Worker, steps: int, lr: float) -> Mapping[str, Tensor]:
        step = lr / (1 - p.momentum)
        change = (origin - worker.parameters.detach()) / (steps * step) - c
        site.store[OWN] = {"variate": c_i + change}
        return {"variate_change": change}

    return Term(correct=correct, finish=finish, momentum=p.momentum)


def update(state: State, total: Total, participants: int) -> Tensors:
    """The mean model, and the server's variate moved by the clients' share of all participants."""
    mean = total.mean()
    if not mean:
        return state.tensors
    change = mean.pop("variate_change")
    variate = _variate(state.tensors, change) + change * (total.contributors / participants)
    return {**state.tensors, **mean, "variate": variate}


def _variate(tensors: Tensors, like: Tensor) -> Tensor:
    """A kept variate; zeros where there is none, or one of another head, which is of another stage."""
    kept = tensors.get("variate")
    return torch.zeros_like(like) if kept is None or kept.numel() != like.numel() else kept.to(like.device)
