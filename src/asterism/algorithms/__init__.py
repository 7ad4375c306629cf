"""The stages of learning and the participant tasks behind them, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from asterism import evaluation
from asterism.algorithms import autonovel, discover, gal, gm, incd, kmeans, known, replay, screen
from asterism.algorithms.autonovel import AutoNovel
from asterism.algorithms.gal import Gal
from asterism.algorithms.gm import Gm
from asterism.algorithms.incd import Incd
from asterism.algorithms.kmeans import Kmeans
from asterism.algorithms.known import Known
from asterism.config import Section
from asterism.flow import Flow
from asterism.site import Task

Method = Annotated[Gal | Kmeans | AutoNovel | Gm | Incd, Field(discriminator="name")]


@dataclass(frozen=True)
class Algorithm:
    """One stage of learning: its settings, its flow, the tasks its asks name, and whether it may follow itself."""

    params: type[Section]
    flow: Callable[..., Flow]
    tasks: Mapping[str, Task]
    several_stages: bool = True


ALGORITHMS: Mapping[str, Algorithm] = {
    "known": Algorithm(Known, known.known_stage, {"known": known.train_locally}),
    "gal": Algorithm(Gal, gal.novel_stage, {"gal": gal.train_locally}),
    "kmeans": Algorithm(Kmeans, kmeans.novel_stage, {}),
    "autonovel": Algorithm(
        AutoNovel, autonovel.novel_stage, {"autonovel": autonovel.train_locally}, several_stages=False
    ),
    "gm": Algorithm(Gm, gm.novel_stage, {"gm": gm.train_locally}),
    "incd": Algorithm(Incd, incd.novel_stage, {"incd": incd.train_locally, "class-statistics": replay.send_statistics}),
}

TASKS: Mapping[str, Task] = {
    "evaluate": evaluation.evaluate,
    "prototypes": discover.send_prototypes,
    "lloyd": discover.assign,
    **screen.TASKS,
    **{name: task for algorithm in ALGORITHMS.values() for name, task in algorithm.tasks.items()},
}
