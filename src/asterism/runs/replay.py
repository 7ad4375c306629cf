"""Stored answers, and the fleet that gives them again: what would the server have made of them?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from asterism.errors import AsterismError
from asterism.flow import Answer, Answers, Ask, Collect, Failure, Reply, Tensors, Total, Version
from asterism.runs.store import read_tensors, write_tensors


class Recorder:
    """Writes answers below a run folder, one file an ask."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record(self, ask: Ask, answer: Answer) -> None:
        """Keeps ``answer`` as the one given to ``ask``."""
        described: dict[str, object] = {
            "participants": ask.participants,
            "version": asdict(ask.version),
            "failures": [asdict(failure) for failure in answer.failures],
        }
        if isinstance(answer, Total):
            tensors = dict(answer.tensors)
            described |= {
                "weight": answer.weight, "replies": answer.replies, "contributors": answer.contributors,
                "metrics": dict(answer.metrics),
            }  # fmt: skip
        else:
            tensors = {f"{k}/{n}": v for k, r in answer.replies.items() for n, v in r.tensors.items()}
            described["answers"] = {
                k: {"weight": r.weight, "metrics": dict(r.metrics)} for k, r in answer.replies.items()
            }
        write_tensors(_file(self._folder, ask), tensors, described)


class Replay:
    """Answers asks from what a run recorded, without any site.

    Participants in ``without`` are left out of every ``Collect``; a ``Sum`` keeps no single reply, so there it is
    refused.
    """

    def __init__(self, folder: Path, without: Collection[str] = ()) -> None:
        self._folder, self._without = folder, frozenset(without)

    def answer(self, ask: Ask) -> Answer:
        """The recorded answer to ``ask``."""
        tensors, described = self._recorded(ask)
        failures = tuple(Failure(**failure) for failure in described["failures"])
        if isinstance(ask, Collect):
            return Answers(self._replies(tensors, described), failures)
        if self._without & set(ask.participants):
            raise AsterismError(
                f"round {ask.version.round} kept only the total of its participants, none can be left out of it",
                fix="leave participants out of stages that collect single replies",
            )
        amounts = (described["weight"], described["replies"], described["contributors"], described["metrics"])
        return Total(tensors, *amounts, failures)

    def _recorded(self, ask: Ask) -> tuple[dict[str, Tensor], dict[str, Any]]:
        file = _file(self._folder, ask)
        if not file.exists():
            what = f"no recorded answer to {ask.task!r} of round {ask.version.round} in stage {ask.version.stage!r}"
            raise AsterismError(what, where=str(self._folder), fix="run with --set machine.record=all")
        tensors, described = read_tensors(file)
        if (tuple(described["participants"]), described["version"]) != (ask.participants, asdict(ask.version)):
            raise AsterismError("the recorded answer is to another ask: the settings have changed", where=str(file))
        return tensors, described

    def _replies(self, tensors: Tensors, described: Mapping[str, Any]) -> dict[str, Reply]:
        version = Version(**described["version"])
        replies = {}
        for participant, reply in described["answers"].items():
            if participant not in self._without:
                prefix = f"{participant}/"
                own = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
                replies[participant] = Reply(own, reply["weight"], reply["metrics"], version)
        return replies


def _file(folder: Path, ask: Ask) -> Path:
    return folder / "answers" / f"{ask.version.stage}-round{ask.version.round:03d}-{ask.task}.safetensors"
