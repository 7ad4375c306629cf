"""A Flower client that keeps its network and data between messages, as fast clients do."""

from __future__ import annotations

import json
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bench.peers.work import Net, Work, network, tensors, train

app = ClientApp()


@cache
def kept(work: Work, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's data."""
    return tensors(work, client)


@cache
def worker(work: Work) -> Net:
    """The network of this process."""
    torch.set_num_threads(work.threads)
    return network(work)


@app.train()
def fit(message: Message, context: Context) -> Message:
    """A client's round."""
    config = message.content["config"]
    work = Work(**json.loads(str(config["work"])))
    client = int(str(context.node_config["partition-id"]))
    net = worker(work)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    train(net, kept(work, client), work)
    metrics = MetricRecord({"num-examples": work.images})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
