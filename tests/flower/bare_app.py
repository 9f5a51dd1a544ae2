"""FedAvg as an app of Flower's own, without clusterfl's engine: what `python -m tests.flower.cost` compares with."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

server_app = ServerApp()
client_app = ClientApp()


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    times: list[float] = []

    def note(round: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    strategy = FedAvg(min_available_nodes=4, min_train_nodes=4, min_evaluate_nodes=4)
    rounds = int(str(context.run_config["rounds"]))
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds, evaluate_fn=note)  # type: ignore[arg-type]
    times.append(time.perf_counter())
    Path(os.environ["BARE_TIMES"]).write_text(json.dumps(times))


def data(context: Context) -> tuple[torch.Tensor, ...]:
    from clusterfl.config import Config

    population = Config.load(str(context.node_config["config"])).population()
    i = int(str(context.node_config["index"]))
    return (*population.train.of(i), *population.test.of(i))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    x, y, _, _ = data(context)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    for rows in torch.randperm(len(y)).split(20):
        step.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        step.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, _, x, y = data(context)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    right = float((net(x).argmax(1) == y).float().mean())
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": right, "num-examples": len(y)})}), reply_to=message)
