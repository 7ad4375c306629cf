"""The stages of learning and the participant tasks behind them, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asterism import evaluation
from asterism.algorithms import discover, gal, known, screen
from asterism.algorithms.gal import Gal
from asterism.algorithms.known import Known
from asterism.config import Section
from asterism.flow import Flow
from asterism.site import Task


@dataclass(frozen=True)
class Algorithm:
    """One stage of learning: its settings, its flow, and the tasks its asks name."""

    params: type[Section]
    flow: Callable[..., Flow]
    tasks: Mapping[str, Task]


ALGORITHMS: Mapping[str, Algorithm] = {
    "known": Algorithm(Known, known.known_stage, {"known": known.train_locally}),
    "gal": Algorithm(Gal, gal.novel_stage, {"gal": gal.train_locally}),
}

TASKS: Mapping[str, Task] = {
    "evaluate": evaluation.evaluate,
    "prototypes": discover.send_prototypes,
    "lloyd": discover.assign,
    **screen.TASKS,
    **{name: task for algorithm in ALGORITHMS.values() for name, task in algorithm.tasks.items()},
}
