"""What a participant task is given: local images, the local store, and a network to work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from asterism.data.images import ImageSet
from asterism.flow import Ask, Options, Reply, Tensors
from asterism.worker import Worker

Store = MutableMapping[str, Tensors]


@dataclass(frozen=True)
class Share:
    """The images of one participant in one stage: rows of a set that all participants of a machine share.

    ``targets`` gives every image of the set its position in the federation's class order; those of other stages are
    never looked at.
    """

    images: ImageSet
    targets: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Site:
    """One participant, as its tasks see it."""

    name: str
    share: Callable[[str], Share]  # by stage
    store: Store
    worker: Worker


Task = Callable[[Site, Tensors, Options], Reply]
Gate = Callable[[str, Ask, Reply], Reply]


def perform(site: Site, ask: Ask, tasks: Mapping[str, Task], gates: Sequence[Gate] = ()) -> Reply:
    """A participant's answer to an order, stamped with the version it answers and let out through the gates."""
    reply = replace(tasks[ask.task](site, ask.tensors, ask.options), version=ask.version)
    return let_out(site.name, ask, reply, gates)


def let_out(site: str, ask: Ask, reply: Reply, gates: Sequence[Gate]) -> Reply:
    """The one door through which anything leaves a site: every gate in turn (ledger, later noise and floors)."""
    for gate in gates:
        reply = gate(site, ask, reply)
    return reply
