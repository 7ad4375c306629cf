"""The stages of learning and the participant tasks behind them, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from asterism import evaluation
from asterism.algorithms import (
    autonovel,
    discover,
    gal,
    gm,
    iic,
    incd,
    kmeans,
    known,
    opencon,
    orchestra,
    replay,
    screen,
)
from asterism.algorithms.autonovel import AutoNovel
from asterism.algorithms.gal import Gal
from asterism.algorithms.gm import Gm
from asterism.algorithms.iic import Iic
from asterism.algorithms.incd import Incd
from asterism.algorithms.kmeans import Kmeans
from asterism.algorithms.known import Known
from asterism.algorithms.opencon import OpenCon
from asterism.algorithms.orchestra import Orchestra
from asterism.config import Section
from asterism.flow import Flow
from asterism.site import Task

Method = Annotated[Gal | Kmeans | AutoNovel | Iic | Orchestra | Gm | Incd | OpenCon, Field(discriminator="name")]


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
    "iic": Algorithm(Iic, iic.novel_stage, {"iic": iic.train_locally}, several_stages=False),
    "orchestra": Algorithm(Orchestra, orchestra.novel_stage, orchestra.TASKS, several_stages=False),
    "gm": Algorithm(Gm, gm.novel_stage, {"gm": gm.train_locally}),
    "incd": Algorithm(Incd, incd.novel_stage, {"incd": incd.train_locally, "class-statistics": replay.send_statistics}),
    "opencon": Algorithm(
        OpenCon,
        opencon.novel_stage,
        {"opencon": opencon.train_locally, "opencon-rows": opencon.send_rows},
        several_stages=False,
    ),
}

TASKS: Mapping[str, Task] = {
    "evaluate": evaluation.evaluate,
    "prototypes": discover.send_prototypes,
    "lloyd": discover.assign,
    **screen.TASKS,
    **{name: task for algorithm in ALGORITHMS.values() for name, task in algorithm.tasks.items()},
}
