"""Stored answers, and the fleet that gives them again: what would the server have made of them?"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from asterism.aggregate import answered
from asterism.errors import AsterismError
from asterism.flow import Answer, Answers, Ask, Collect, Failure, Reply, Total, Version
from asterism.runs.store import read_tensors, write_tensors

FORMAT = "1"


class Recorder:
    """Writes answers below a run folder, one file an ask."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record(self, ask: Ask, answer: Answer) -> None:
        """Keeps ``answer`` as the one given to ``ask``."""
        described = {
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
        header = {"format": FORMAT, "answer": json.dumps(described)}
        write_tensors(_file(self._folder, ask), tensors, header)


class Replay:
    """Answers asks from what a run recorded, without any site.

    Participants in ``without`` are left out of every ``Collect``; a ``Sum`` keeps no single reply, so there it is
    refused.
    """

    def __init__(self, folder: Path, without: Collection[str] = ()) -> None:
        self._folder, self._without = folder, frozenset(without)

    def answer(self, ask: Ask) -> Answer:
        """The recorded answer to ``ask``."""
        file = _file(self._folder, ask)
        if not file.exists():
            raise AsterismError(
                f"no recorded answer to {ask.task!r} of round {ask.version.round} in stage {ask.version.stage!r}",
                where=str(self._folder), fix='record a run with --set machine.record="all"',
            )  # fmt: skip
        tensors, header = read_tensors(file)
        described = json.loads(header["answer"])
        if tuple(described["participants"]) != ask.participants or described["version"] != asdict(ask.version):
            raise AsterismError("the recorded answer is to another ask: the settings have changed since", where=str(file))
        failures = tuple(Failure(**failure) for failure in described["failures"])
        if not isinstance(ask, Collect):
            return self._total(ask, Total(
                tensors, described["weight"], described["replies"], described["contributors"], described["metrics"], failures
            ))  # fmt: skip
        replies = {
            participant: Reply(
                {name.removeprefix(f"{participant}/"): v for name, v in tensors.items() if name.startswith(f"{participant}/")},
                reply["weight"], reply["metrics"], Version(**described["version"]),
            )
            for participant, reply in described["answers"].items()
            if participant not in self._without
        }  # fmt: skip
        given = answered(ask, replies.items())
        return Answers(given.replies, failures) if isinstance(given, Answers) else given

    def _total(self, ask: Ask, total: Total) -> Total:
        if self._without & set(ask.participants):
            raise AsterismError(
                f"round {ask.version.round} kept only the total of its participants, none can be left out of it",
                fix="leave participants out of stages that collect single replies",
            )
        return total


def _file(folder: Path, ask: Ask) -> Path:
    return folder / "answers" / f"{ask.version.stage}-round{ask.version.round:03d}-{ask.task}.safetensors"
