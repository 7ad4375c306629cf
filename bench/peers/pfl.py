"""pfl-research: its simulated backend, one model reused, tensors as data, as its own benchmarks do it."""

from __future__ import annotations

from importlib import metadata
from itertools import count, cycle
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench.peers.work import LR, MOMENTUM, WEIGHT_DECAY, Net, network, serve, tensors, told


class Learner(Net):
    """The network with what pfl calls."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of one batch."""
        return cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """Nothing is measured."""
        return {}


class Travelling(FederatedAveraging):  # type: ignore[misc]  # an untyped stranger
    """Averaging without local training."""

    def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        """What a client that has nothing to do sends."""
        return model.get_model_difference(initial_model_state), Metrics()


def main() -> None:
    """One process of this peer."""
    work = told()
    net = network(work)
    net.__class__ = Learner
    data = {client: PyTorchTensorDataset(tensors(work, client)) for client in range(work.clients)}
    model = PyTorchModel(
        net.train(),
        lambda parameters, lr: torch.optim.SGD(
            parameters, lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=work.device == "cuda"
        ),
        torch.optim.SGD(net.parameters(), 1.0),  # the central step: the mean difference, as it is
        amp_dtype=torch.bfloat16 if work.half else None,
    )
    users = cycle(range(work.clients))
    backend = SimulatedBackend(training_data=FederatedDataset(data.__getitem__, lambda: next(users)), val_data=None)
    algorithm: Any = FederatedAveraging() if work.trains else Travelling()
    local = NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=LR, local_batch_size=work.batch)
    rounds = count(1)

    def play() -> None:
        # It goes on from the round where it stopped; no round is one to evaluate after.
        params = NNAlgorithmParams(
            central_num_iterations=next(rounds), evaluation_frequency=1 << 30, train_cohort_size=work.clients,
            val_cohort_size=None,
        )  # fmt: skip
        algorithm.run(params, backend, model, local, send_metrics_to_platform=False)

    # Round 0 would be evaluated whatever the frequency; none of ours is.
    algorithm._current_central_iteration = next(rounds)
    serve(work, {"pfl": metadata.version("pfl")}, play, lambda: net)


if __name__ == "__main__":
    main()
