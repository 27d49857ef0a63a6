"""The rounds in Flower's simulation on Ray, with as many actors of one processor as threads.

FedAvg and QFedAvg are Flower's strategies (`flwr.serverapp.strategy`). QFedAvg there is the rule of
the paper if clients send their loss at the received model, as here. The older
`flwr.server.strategy.QFedAvg` is not: it uses one loss, measured by the server, for all clients.
Ditto is FedAvg whose clients keep their own model in Flower's state of a node.
"""

from __future__ import annotations

import sys

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, QFedAvg
from flwr.simulation import run_simulation
from shared import Record, Work, arrays, asked, fill, initial_network, mean_loss, train

work, place = asked()
record, source = Record(work), sys.argv[1]
client_app, server_app = ClientApp(), ServerApp()
kept: dict[str, tuple] = {}  # the work is read once for each actor


def prepared():
    """The work and a network, of this actor."""
    if source not in kept:
        its = Work(source)
        kept[source] = (its, initial_network(its))
        torch.set_num_threads(1)  # of this actor
    return kept[source]


@client_app.train()
def train_client(message, context):
    """One client's round."""
    its, net = prepared()
    client, round = int(context.node_config["partition-id"]), message.content["config"]
    received = message.content["arrays"].to_numpy_ndarrays()
    x, y = its.examples(int(round["server-round"]) - 1, client)
    metrics = {"num-examples": len(x)}
    if its.lam:
        before = context.state["own"].to_numpy_ndarrays() if "own" in context.state else its.initial
        fill(net, received)
        towards = [p.detach().clone() for p in net.parameters()]
        fill(net, before)
        train(net, x, y, its, towards=towards)
        context.state["own"] = ArrayRecord(arrays(net))
    fill(net, received)
    if its.q:
        metrics["train_loss"] = mean_loss(net, x, y)
    train(net, x, y, its)
    records = {"arrays": ArrayRecord(arrays(net)), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(records), reply_to=message)


@client_app.query()
def own_model(message, context):
    """A client's own model, after the last round."""
    number = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"own": context.state["own"], "number": number}), reply_to=message)


class Timed:
    """Records the end of each round of a strategy."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        made = super().aggregate_train(server_round, replies)
        record.round(lambda: made[0].to_numpy_ndarrays())
        return made


class TimedFedAvg(Timed, FedAvg):
    """FedAvg with times."""


class TimedQFedAvg(Timed, QFedAvg):
    """QFedAvg with times."""


@server_app.main()
def serve(grid, _):
    """All rounds."""
    sampled = {
        "fraction_train": 1.0,
        "fraction_evaluate": 0.0,
        "min_train_nodes": work.clients,
        "min_available_nodes": work.clients,
    }
    if work.q:
        strategy = TimedQFedAvg(client_learning_rate=work.lr, q=work.q, **sampled)
    else:
        strategy = TimedFedAvg(**sampled)
    result = strategy.start(grid, ArrayRecord(work.initial), num_rounds=work.rounds)
    final = result.arrays.to_numpy_ndarrays()
    if work.lam:
        asking = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
        replies = [reply.content for reply in grid.send_and_receive(asking)]
        for reply in sorted(replies, key=lambda reply: reply["number"]["client"]):
            final += reply["own"].to_numpy_ndarrays()
    record.write(place, "flwr", final)


run_simulation(
    server_app=server_app,
    client_app=client_app,
    num_supernodes=work.clients,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": work.threads},
    },
)
