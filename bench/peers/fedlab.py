"""FedLab: its standalone pipeline of a server handler and a serial trainer.

Its trainer's loop is replaced by the one that all peers here run, because its own takes a loader of single images and
an optimiser without momentum; what travels, and how it is averaged, is FedLab's. BatchNorm statistics do not travel.
"""

from __future__ import annotations

import logging
import sys
from importlib import metadata
from typing import Any
from unittest.mock import MagicMock

from torch import Tensor

from bench.peers.work import Work, network, serve, tensors, told, train

# FedLab's data sets, which nobody asks for here, import it; its builds are each tied to one build of torch.
sys.modules["torchvision"] = MagicMock()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402


class Loaders:
    """A client's whole share as what FedLab calls its loader."""

    def __init__(self, work: Work) -> None:
        self.data = [tensors(work, client) for client in range(work.clients)]

    def get_dataloader(self, client: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """A client's share."""
        return self.data[client]


class Trainer(SGDSerialClientTrainer):  # type: ignore[misc]  # an untyped stranger
    """FedLab's serial trainer with the common loop."""

    work: Work

    def train(self, model_parameters: Tensor, train_loader: tuple[Tensor, Tensor]) -> list[Tensor]:
        """A client's round."""
        self.set_model(model_parameters)
        train(self._model, train_loader, self.work)
        return [self.model_parameters]


def main() -> None:
    """One process of this peer."""
    work = told()
    cuda = work.device == "cuda"
    where: dict[str, Any] = {"cuda": cuda, "device": "cuda:0" if cuda else None, "logger": logging.getLogger("fedlab")}
    handler = SyncServerHandler(network(work), global_round=1 << 30, sample_ratio=1.0, **where)
    trainer = Trainer(network(work), work.clients, **where)
    trainer.work = work
    trainer.setup_dataset(Loaders(work))
    trainer.setup_optim(work.epochs, work.batch, 0.0)
    handler.num_clients = work.clients

    def play() -> None:
        trainer.local_process(handler.downlink_package, handler.sample_clients())
        for package in trainer.uplink_package:
            handler.load(package)

    serve(work, {"fedlab": metadata.version("fedlab")}, play, lambda: handler.model)


if __name__ == "__main__":
    main()
