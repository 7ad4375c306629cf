"""One m^L for all runs that agree on how it is trained: its folder is named by the settings that decide it.

A run starts its novel stage from a kept known stage as a resumed run would from its own: its folder is given the
last known state, what participants keep (SCAFFOLD's variates, MOON's models), and the events up to there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from asterism.data.sources import load as load_images
from asterism.experiment import Experiment
from asterism.files import Lines, now, write_json
from asterism.runs.driver import Progress
from asterism.runs.execute import Loader, execute, new_folder
from asterism.suite.identity import decisive, decisive_for_known, digest
from asterism.suite.plan import Planned


def known_folder(planned: Planned, work: Path) -> Path:
    """Where the known stage of a run lies, or will."""
    return work / "known" / digest(decisive_for_known(planned))


def run_folder(planned: Planned, work: Path) -> Path:
    """Where the run itself lies, or will."""
    place = planned.place
    name = "-".join(part for part in (place.dataset, place.setting, place.row) if part)
    return work / "runs" / f"{name}-{place.seed}-{digest(decisive(planned))}"


def is_trained(folder: Path) -> bool:
    """Whether a known stage has come to its end."""
    return (folder / "results.json").exists()


def trained(planned: Planned, work: Path, progress: Progress, load: Loader = load_images) -> Path:
    """The folder of the known stage that the run starts from, trained to its end where it is not yet."""
    folder = known_folder(planned, work)
    if not is_trained(folder):
        if not (folder / "config.toml").exists():
            new_folder(planned.known, folder)
        execute(folder, progress, load)
    return folder


def begun(planned: Planned, work: Path, known: Path) -> Path:
    """The folder of the run, with the finished known stage in it where the run is new."""
    folder = run_folder(planned, work)
    if folder.exists():
        return folder
    part = folder.with_name(f".{folder.name}.part")  # takes its place whole, so that a cut leaves no half of it
    shutil.rmtree(part, ignore_errors=True)
    new_folder(planned.experiment, part)
    _take_over(known, part, stores=_same_participants(planned))
    part.rename(folder)
    return folder


def _same_participants(planned: Planned) -> bool:
    def who(experiment: Experiment) -> tuple[object, ...]:
        return experiment.split.participants, experiment.split.partition, experiment.split.alpha

    return who(planned.known) == who(planned.experiment)


def _take_over(known: Path, folder: Path, *, stores: bool) -> None:
    for pattern in ("states/*.safetensors", "tables/*.json", *(["sites/*/*.safetensors"] if stores else [])):
        for file in sorted(known.glob(pattern)):
            _link(file, folder / file.relative_to(known))
    events = Lines(folder / "events.jsonl")
    for event in Lines(known / "events.jsonl"):
        if event["event"] != "finished":
            events.append(event)
    events.append({"at": now(), "event": "started_from", "known": known.name})
    if (known / "ledger.jsonl").exists():
        shutil.copyfile(known / "ledger.jsonl", folder / "ledger.jsonl")
    write_json(folder / "origin.json", {"format": 1, "known": known.name})


def _link(file: Path, to: Path) -> None:
    """``to`` holds what ``file`` does; no byte is copied where the file system can do without."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
