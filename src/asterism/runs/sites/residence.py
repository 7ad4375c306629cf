"""A site's one long-lived participant: it holds network and images, and answers each order that reaches it.

An order that comes again gets the same bytes again, without work: a server that was cut asks twice, and what a site
remembers must not move twice. What a site remembers and what it answered become durable together, before the answer
leaves. So a site that is killed at any instant goes on as if the order had been answered, or had never come.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from asterism.aggregate import Outcome
from asterism.algorithms import TASKS
from asterism.config import validate
from asterism.data.split import KNOWN
from asterism.errors import AsterismError
from asterism.files import now, read_json, write_json
from asterism.flow import Failure, Reply
from asterism.model import PLAIN, Speed
from asterism.privacy.groups import Floor, Withhold, raised
from asterism.privacy.ledger import Ledger
from asterism.runs.machine import computing_devices
from asterism.runs.parcel import Parcel
from asterism.runs.sites.answers import AnswerFolder
from asterism.runs.sites.contract import HELLO, WAITING, Contract
from asterism.runs.sites.local_images import LocalImages, SplitImages
from asterism.runs.sites.settings import SiteFile
from asterism.runs.wire import Order, packed_reply, unpacked_order, unpacked_reply
from asterism.site import Gate, Site, Task, perform
from asterism.worker import Worker

UNREMEMBERED = (HELLO, WAITING)  # cheap, and may be answered otherwise the next time
# What the server hears where a site refuses a contract; the names that differ stay at the site.
TOLD = {HELLO: "the site's names, images or version do not fit the contract; its owner was told what to mend"}

Note = Callable[..., None]  # an event's name and facts, into the site's log


class Residence:
    """Answers parcels for one site, one at a time; ``folder`` holds what must outlive the process."""

    def __init__(self, settings: SiteFile, note: Note, tasks: Mapping[str, Task] = TASKS) -> None:
        self._settings, self._note, self._tasks = settings, note, tasks
        self._folder = settings.path(settings.folder)
        self._memory = AnswerFolder(self._folder)
        self._veto = Withhold(settings.withhold)
        self._ledger = Ledger(self._folder / "ledger.jsonl", now)
        self.gates: tuple[Gate, ...] = (self._veto, Floor(settings.floor), self._ledger)
        self.contract: Contract | None = None
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if self._contract_file.exists():
            self._agree(validate(Contract, read_json(self._contract_file), source=str(self._contract_file)))

    @property
    def _contract_file(self) -> Path:
        return self._folder / "contract.json"

    def answer(self, parcel: Parcel) -> Parcel:
        """The reply to an order; whatever goes wrong is a reply too."""
        started = time.monotonic()
        try:
            order = unpacked_order(parcel, self._settings.name)
        except AsterismError as error:
            self._note("refused", reason=error.what)
            return packed_reply(Failure(self._settings.name, "rejected", error.what))
        task, version = order.ask.task, order.ask.version
        reply = self._again(order, parcel.digest)
        again = reply is not None
        reply = reply or self._answered(order, parcel.digest)
        self._note(
            "answered", task=task, stage=version.stage, round=version.round, again=again,
            bytes=len(reply), seconds=round(time.monotonic() - started, 3),
        )  # fmt: skip
        return reply

    def _again(self, order: Order, digest: str) -> Parcel | None:
        """The bytes that this very order was answered with, which are entered in the ledger once more."""
        kept = self._memory.answer_to(order.ask.task, digest)
        if kept is None or order.ask.task in self._settings.withhold:
            return None
        outcome = unpacked_reply(kept, self._settings.name)
        if isinstance(outcome, Reply):
            self._ledger(self._settings.name, order.ask, outcome)
        return kept

    def _answered(self, order: Order, digest: str) -> Parcel:
        """Does the work of an order that was not answered yet, and keeps the answer with what the site remembers."""
        outcome = self._outcome(order)
        reply = packed_reply(outcome)
        if isinstance(outcome, Failure):
            self._memory.forget()  # what a failed task left half-done
        elif order.ask.task not in UNREMEMBERED:
            try:
                self._memory.keep(order.ask.task, digest, reply)
            except AsterismError as error:  # a full disk: nothing leaves that is not kept
                self._memory.forget()
                return packed_reply(self._failed(order, error))
        return reply

    def _outcome(self, order: Order) -> Outcome:
        work = {HELLO: self._hello, WAITING: self._waiting}.get(order.ask.task, self._task)
        try:
            return work(order)
        except Exception as error:
            return self._failed(order, error)

    def _failed(self, order: Order, error: Exception) -> Failure:
        """The failure that the server is told of: its kind and place. The sentence, which may name a file, stays."""
        self._note("failed", task=order.ask.task, reason=str(error) or type(error).__name__)
        if isinstance(error, AsterismError):
            return Failure(self._settings.name, "rejected", TOLD.get(order.ask.task, error.what))
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.lineno}; the site's log says more"
        return Failure(self._settings.name, "exception", told)

    def _task(self, order: Order) -> Reply:
        """A task of the algorithms, let out through the site's gates."""
        self._veto.refuse(order.ask.task)
        self._require_contract(order)
        ask = replace(order.ask, options=raised(order.ask.options, self._settings.floor))
        return perform(self._site, ask, self._tasks, self.gates)

    def _waiting(self, order: Order) -> Reply:
        """How many unlabelled images a novel stage would have here."""
        self._veto.refuse(WAITING)
        self._require_contract(order)
        images = self._images.waiting(str(order.ask.options["stage"]))
        return self._counted(order, {"images": float(images)})

    def _counted(self, order: Order, counts: Mapping[str, float]) -> Reply:
        reply = Reply({}, metrics=counts, version=order.ask.version)
        return self._ledger(self._settings.name, order.ask, reply)

    def _hello(self, order: Order) -> Reply:
        """Agrees to a federation's contract, or is refused with the reason; only two counts are told."""
        options = order.ask.options
        if options["name"] and options["name"] != self._settings.name:
            raise AsterismError(
                f"the server knows this key as {options['name']!r}, this site calls itself {self._settings.name!r}",
                where="name",
                fix="one of the two is wrong, or the key is another site's",
            )
        contract = Contract.model_validate_json(str(options["contract"]))
        if contract != self.contract:
            if self.contract is not None and self.contract.run != contract.run:
                raise AsterismError(
                    f"this site's folder belongs to the run {self.contract.run!r}, not {contract.run!r}",
                    where=str(self._folder),
                    fix="name another folder in site.toml",
                )
            self._agree(contract)
            write_json(self._contract_file, contract.model_dump(mode="json"))
        return self._counted(order, {"known_images": float(len(self._images.share(KNOWN)))})

    def _require_contract(self, order: Order) -> None:
        if self.contract is None or order.run != self.contract.run:
            raise AsterismError("this site has not agreed to the run", fix="the server must say hello first")

    def _agree(self, contract: Contract) -> None:
        """Reads images and makes the network of a contract; an error where they do not fit it."""
        settings, folder = self._settings, self._folder
        source = settings.path(settings.images) if settings.path(settings.images).exists() else settings.images
        images = contract.images(str(source), settings.root)
        local: LocalImages | SplitImages
        if settings.split:
            local = SplitImages(images, contract, settings.path(settings.split), settings.name)
        else:
            local = LocalImages(images, contract, folder / "images.json")
        device = computing_devices(settings.device)[0]
        speed = Speed(half=True, graphs=True) if device.type == "cuda" else PLAIN
        worker = Worker.of(contract.model, contract.shape, contract.rows, contract.seed, str(device), speed)
        if worker.layout.id != contract.layout:
            raise AsterismError("this version lays the network out otherwise than the server's", fix="install the same")
        self._images, self.contract = local, contract
        self._site = Site(settings.name, local.share, self._memory.store, worker)
        self._note("agreed", run=contract.run, classes=list(contract.classes), device=str(device))
