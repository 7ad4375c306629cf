"""What no engine can do without where models only travel: each client gets a copy of the model, which is added up."""

from __future__ import annotations

import torch

from bench.peers.work import Net, network, serve, told


def main() -> None:
    """One process of this peer."""
    work = told()
    if work.trains:
        raise SystemExit("only for work in which nothing is trained")
    net: Net = network(work)
    model = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    own, total = torch.empty_like(model), torch.empty_like(model)

    def play() -> None:
        for client in range(work.clients):
            own.copy_(model)
            if client == 0:
                torch.mul(own, 1 / work.clients, out=total)
            else:
                total.add_(own, alpha=1 / work.clients)

    serve(work, {}, play, lambda: net)


if __name__ == "__main__":
    main()
