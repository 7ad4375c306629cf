"""The app of a virtual node: it answers for the participant whose number is the node's partition.

Any process of Ray may answer for any participant. Each builds the federation once, from the run folder, and reads and
writes there what the participant remembers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from asterism.data.sources import load as load_images
from asterism.experiment import load as load_experiment
from asterism.flow import Answers, Collect
from asterism.runs.execute import settled_split
from asterism.runs.flower.records import replied
from asterism.runs.parcel import Parcel
from asterism.runs.simulate import Simulation, simulate
from asterism.runs.store import RunFolder
from asterism.runs.wire import packed_reply, unpacked_order

PARTITION = "partition-id"  # of a node's configuration, as Flower calls it
WHO = "query.who"  # a message that asks for a node's partition


def virtual_sites(folder: str) -> ClientApp:
    """The app of every virtual node of the run in ``folder``."""
    app = ClientApp()

    @app.query("who")
    def who(message: Message, context: Context) -> Message:
        partition = ConfigRecord({PARTITION: int(str(context.node_config[PARTITION]))})
        return Message(RecordDict({WHO: partition}), reply_to=message)

    @app.query("order")
    def order(message: Message, context: Context) -> Message:
        partition = int(str(context.node_config[PARTITION]))
        return replied(message, lambda parcel: answered_for(folder, partition, parcel))

    return app


def answered_for(folder: str, partition: int, parcel: Parcel) -> Parcel:
    """A participant's reply to an order; what it remembers is in the run folder before the reply leaves."""
    simulation, kept = federation(folder)
    name = simulation.participants[partition]
    ask = unpacked_order(parcel, name).ask
    store = kept.stores.reread(name)
    answers = simulation.fleet.answer(Collect((name,), ask.task, ask.tensors, ask.version, ask.options))
    assert isinstance(answers, Answers)
    kept.stores.write(kept.step + 1)  # of the state that the server keeps next
    store.clear()  # another process may answer next, and this one serves many
    return packed_reply(answers.replies[name] if answers.replies else answers.failures[0])


@cache
def federation(folder: str) -> tuple[Simulation, RunFolder]:
    """The federation of a run folder, built once a process."""
    kept = RunFolder(Path(folder))
    experiment = load_experiment(kept.path / "config.toml")
    machine = experiment.machine.model_copy(update={"workers": 1, "device": "cpu"})
    dataset = load_images(experiment.data, seed=experiment.seed).dataset
    split = settled_split(kept.path, experiment, dataset)
    alone = experiment.model_copy(update={"machine": machine})
    return simulate(alone, dataset=dataset, split=split, stores=kept.stores), kept
