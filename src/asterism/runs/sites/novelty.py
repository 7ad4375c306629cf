"""When a novel stage begins: enough sites have enough images that nobody has learned from, or somebody says so."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from asterism.aggregate import answered
from asterism.algorithms.screen import Screening, screening_flow
from asterism.errors import AsterismError
from asterism.files import write_text
from asterism.flow import Answer, Answers, Ask, Collect, State, Sum
from asterism.runs.sites.contract import WAITING
from asterism.runs.sites.members import Sites
from asterism.runs.sites.settings import Stages

SCREEN = "screen"  # the task whose replies are looked at site by site


def novel_images(
    sites: Sites, everyone: tuple[str, ...], state: State, screening: Screening, seed: int
) -> dict[str, int]:
    """How many images each site would bring to the stage of ``state``: unlabelled ones, or those called novel."""
    options = {"stage": state.stage}
    answers = sites.answer(Collect(everyone, WAITING, {}, state.version, options))
    assert isinstance(answers, Answers)
    counts = {name: int(reply.metrics["images"]) for name, reply in answers.replies.items()}
    if not screening.filter or not any(counts.values()):
        return counts
    found = dict.fromkeys(counts, 0)
    flow = screening_flow(state, tuple(counts), screening, seed=seed, known=len(state.classes))
    _run(flow, sites, found)
    return found


def _run(flow: Generator[Sum, Any, Any], sites: Sites, found: dict[str, int]) -> None:
    """Runs a screening flow, noting what each site called novel."""
    answer: Answer | None = None
    while True:
        try:
            ask = flow.send(answer)
        except StopIteration:
            return
        answer = _looked_at(ask, sites, found) if ask.task == SCREEN else sites.answer(ask)


def _looked_at(ask: Ask, sites: Sites, found: dict[str, int]) -> Answer:
    """The answer to an ask whose replies are also looked at one by one; only counts are in them."""
    answers = sites.answer(Collect(**vars(ask)))
    assert isinstance(answers, Answers)
    found |= {name: int(reply.metrics.get("flagged", 0)) for name, reply in answers.replies.items()}
    return answered(ask, answers.replies.items())


def enough(images: Mapping[str, int], rule: Stages) -> bool:
    """Whether a stage may begin by the rule."""
    return rule.start == "policy" and sum(count >= rule.images for count in images.values()) >= rule.sites


def start_file(folder: Path, stage: str) -> Path:
    """The file whose existence says that a stage is to begin, whatever the rule says."""
    return folder / "start" / stage


def start_by_hand(folder: Path, stage: str) -> None:
    """Lets the server begin a stage at its next look."""
    if not (folder / "events.jsonl").exists():
        raise AsterismError("not the run folder of a federation", where=str(folder), fix="folder of federation.toml")
    write_text(start_file(folder, stage), "by hand\n")
