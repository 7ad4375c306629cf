"""The life of a federation at its server: the known stage, then novel ones as they become due, until all are done.

Everything that must outlive the server is in its run folder, written round by round: a server that was killed at any
instant goes on from its newest state. Between two rounds it looks who is there, so a site that came late is asked in
the next round and one that left is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from asterism.algorithms import gal, screen
from asterism.algorithms.local import Setup
from asterism.errors import AsterismError
from asterism.evaluation import Tables, ask_evaluation, by_stage, empty_tables, scores
from asterism.experiment import Experiment
from asterism.files import Lines, now, write_json
from asterism.flow import State, run
from asterism.runs.driver import Account, Driver
from asterism.runs.execute import versions
from asterism.runs.progress import Silent
from asterism.runs.replay import Recorder
from asterism.runs.simulate import stage_flow
from asterism.runs.sites.contract import Contract
from asterism.runs.sites.local_images import TEST
from asterism.runs.sites.members import Members, Sites
from asterism.runs.sites.novelty import enough, novel_images, start_file
from asterism.runs.sites.settings import FederationFile
from asterism.runs.store import RunFolder
from asterism.worker import Worker


class Life:
    """One federation, brought from wherever its run folder stands to the end of its last stage."""

    def __init__(
        self,
        settings: FederationFile,
        experiment: Experiment,
        sites: Sites,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._experiment, self._sites = settings, experiment, sites
        self._sleep, self._clock = sleep, clock
        self._folder = settings.path(settings.folder)
        self._log = Lines(self._folder / "log.jsonl")
        worker = Worker.of(
            experiment.model, settings.shape, experiment.known.rows(len(settings.classes)), experiment.seed
        )
        self._first = State("known", 0, worker.take(), worker.layout.id, settings.classes)
        self.contract = contract(settings, experiment, worker)
        self.members = Members(sites, self.contract, self._note)
        self._setup = Setup(
            experiment.federation, experiment.train, experiment.data.augment, experiment.seed, worker.layout
        )
        self._driver = self._new_driver()
        self._phase = ""
        self._read: tuple[str, int, Tables] | None = None  # the newest evaluation

    def run(self) -> dict[str, Any]:
        """The results, after the last stage."""
        state = self._begin()
        for number, name in enumerate(self._stages()):
            if not any(done["name"] == name for done in self._driver.account.stages):
                state = self._stage(number, name, state)
        experiment = self._experiment
        results = {"run": experiment.name, "seed": experiment.seed, "stages": self._driver.results()}
        write_json(self._folder / "results.json", results)
        self._driver.event("finished")
        self._tell("finished", state)
        return results

    def _stages(self) -> list[str]:
        return ["known", *(f"novel-{i}" for i in range(1, len(self._experiment.novel) + 1))]

    def _begin(self) -> State:
        """The state to go on from: the newest kept one, or the one before the first round."""
        checkpoint, experiment = self._driver.folder.newest(), self._experiment
        if checkpoint is None:
            self._driver.event(
                "started", run=experiment.name, seed=experiment.seed, versions=versions(), device="cpu",
                participants=sorted(self._settings.sites),
            )  # fmt: skip
            return self._first
        self._driver.account = Account(checkpoint.step, **checkpoint.progress)
        self._driver.event("resumed", stage=checkpoint.state.stage, round=checkpoint.state.round)
        return checkpoint.state

    def _stage(self, number: int, name: str, state: State) -> State:
        """Runs one stage to its end, from its beginning or from where the kept state is."""
        fresh = state.stage != name or state is self._first
        if fresh:
            state = replace(state, stage=name, round=0)
            self._await_start(number, state)
            self._driver.event("stage_started", stage=name, rounds=self._rounds(number), classes=self._true(number))
        final = self._to_the_end(number, state)
        earlier = sum(done["estimated"] or done["true"] for done in self._driver.account.stages)
        self._await_members(final)
        self._driver.finish(
            final, true=len(self._true(number)) or None, estimated=len(final.classes) - earlier if number else None,
            by_stage=by_stage(self._tables(final), [len(self._true(n)) for n in range(number + 1)]),
        )  # fmt: skip
        self._write_labels(final)
        start_file(self._folder, name).unlink(missing_ok=True)
        return final

    def _to_the_end(self, number: int, state: State) -> State:
        """The last state of a stage; its flow is begun anew from the newest state whenever sites come or go."""
        while True:
            everyone = self._await_members(state)
            met = sum(len(self._true(n)) for n in range(number))
            flow = stage_flow(self._experiment, state, number, everyone, self._setup, met or None)
            try:
                return run(flow, self._driver.ask, partial(self._keep, everyone))
            except _Changed as change:
                state = change.state

    def _keep(self, everyone: tuple[str, ...], state: State) -> None:
        self._driver.keep(state)
        self._tell("training", state)
        every = self._experiment.evaluation.every
        if every and state.round % every == 0:
            self._driver.evaluate(state)
        if self.members.present() != everyone:
            raise _Changed(state)

    def _await_members(self, state: State) -> tuple[str, ...]:
        """The sites that are there, once there are enough of them."""
        end = self._clock() + self._settings.wait
        while len(present := self.members.present()) < self._settings.minimum:
            self._tell("waiting for sites", state)
            if self._clock() >= end:
                raise AsterismError(
                    f"{len(present)} sites are there, {self._settings.minimum} are needed",
                    where="minimum",
                    fix="start the sites; the status page says who was refused, and why",
                )
            self._sleep(0.5)
        self._tell("training", state)
        return present

    def _await_start(self, number: int, state: State) -> None:
        """Returns when a stage is due: the known one at once, a novel one by the rule or by hand."""
        rule, asked_for = self._settings.stages, start_file(self._folder, state.stage)
        while number and not asked_for.exists():
            present = self._await_members(state)
            if rule.start == "policy":
                screening = self._experiment.novel[number - 1].screening
                images = novel_images(self._sites, present, state, screening, self._experiment.seed)
                self._driver.event("looked", stage=state.stage, images=images)
                if enough(images, rule):
                    return
            self._tell("waiting for novel images", state)
            for _ in range(max(1, round(rule.every / 0.5))):
                if asked_for.exists():
                    break
                self._sleep(min(0.5, rule.every))

    def _measure(self, state: State) -> dict[str, object]:
        return scores(self._tables(state))

    def _tables(self, state: State) -> Tables:
        """Count tables of a state, added up over the sites' own test images."""
        if self._read and self._read[:2] == (state.stage, state.round):
            return self._read[2]
        number = self._stages().index(state.stage)
        known, met = len(self._settings.classes), sum(len(self._true(n)) for n in range(number + 1))
        ask = ask_evaluation(state, self.members.present(), known, met, self._experiment.evaluation.calibration)
        ask = replace(ask, options={**ask.options, "stage": f"{TEST}{met}"})
        total = self._sites.answer(ask)
        found = total.tensors or empty_tables(known, met, len(state.classes))  # type: ignore[union-attr]
        self._read = state.stage, state.round, {name: table.numpy() for name, table in found.items()}
        return self._read[2]

    def _true(self, number: int) -> tuple[str, ...]:
        """True classes of a stage, where the server knows them."""
        novel = self._settings.novel
        return self._settings.classes if number == 0 else novel[number - 1] if number <= len(novel) else ()

    def _rounds(self, number: int) -> int:
        return self._experiment.novel[number - 1].rounds if number else self._experiment.known.rounds

    def _write_labels(self, state: State) -> None:
        known = len(self._settings.classes)
        rows = [
            {"row": i, "name": name, "origin": "known" if i < known else "discovered"}
            for i, name in enumerate(state.classes)
        ]
        write_json(self._folder / "labels.json", {"format": 1, "rows": rows})

    def _new_driver(self) -> Driver:
        experiment, machine = self._experiment, self._experiment.machine
        kept = RunFolder(self._folder)
        return Driver(
            kept, self._sites, self._measure, Silent(), quorum=experiment.federation.quorum,
            patience=experiment.federation.patience, evaluate_every=0, keep_every=machine.keep == "all",
            alarm=gal.alarm, figures={"screen": screen.figures},
            recorder=None if machine.record == "none" else Recorder(kept.path), record_totals=machine.record == "all",
        )  # fmt: skip

    def _note(self, event: str, **facts: Any) -> None:
        self._log.append({"at": now(), "event": event, **facts})

    def _tell(self, phase: str, state: State) -> None:
        """The status page says where the federation stands."""
        absent = {name: {"state": "absent"} for name in self._settings.sites}
        write_json(self._folder / "status.json", {
            "at": now(), "phase": phase, "stage": state.stage, "round": state.round, "process": os.getpid(),
            "sites": absent | self.members.states(),
        })  # fmt: skip
        if phase != self._phase:
            self._phase = phase
            self._note("phase", phase=phase, stage=state.stage, round=state.round)


class _Changed(Exception):  # no error: the flow is to be begun anew
    """Other sites are there than the flow was begun with."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


def contract(settings: FederationFile, experiment: Experiment, worker: Worker) -> Contract:
    """What the sites of a federation must agree to."""
    data = experiment.data
    return Contract(
        run=experiment.name, classes=settings.classes, novel=settings.novel, shape=settings.shape, size=data.size,
        colour=data.colour, test_fraction=data.test_fraction, model=experiment.model, rows=worker.layout.rows,
        seed=experiment.seed, layout=worker.layout.id,
    )  # fmt: skip
