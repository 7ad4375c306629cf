"""The plain loop that one would write without a framework: one model, state dicts, the library's optimiser."""

from __future__ import annotations

import torch

from bench.peers.work import Net, Work, network, serve, tensors, told, train


def prepared(work: Work) -> tuple[Net, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The model and every client's data."""
    return network(work), [tensors(work, client) for client in range(work.clients)]


def main() -> None:
    """One process of this peer."""
    work = told()
    net, data = prepared(work)

    @torch.no_grad()
    def averaged(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {
            name: sum((state[name] for state in states[1:]), value) / len(states)
            if value.is_floating_point()
            else value
            for name, value in states[0].items()
        }

    def play() -> None:
        before = {name: value.clone() for name, value in net.state_dict().items()}
        states = []
        for client in range(work.clients):
            net.load_state_dict(before)
            train(net, data[client], work)
            states.append({name: value.clone() for name, value in net.state_dict().items()})
        net.load_state_dict(averaged(states))

    serve(work, {}, play, lambda: net)


if __name__ == "__main__":
    main()
