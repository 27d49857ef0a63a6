"""The rounds in Flower's simulation on Ray, with two actors of one processor each."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import Record, Work, arrays, asked, fill, initial_network, train

FOLDER = os.path.dirname(os.path.abspath(__file__))

work, place = asked()
record, source = Record(), sys.argv[1]


def client(context):
    sys.path.insert(0, FOLDER)
    return Client(int(context.node_config["partition-id"])).to_client()


class Client(NumPyClient):
    """One client; the work is read once for each actor."""

    cache: ClassVar[dict] = {}

    def __init__(self, number: int) -> None:
        if source not in self.cache:
            self.cache[source] = Work(source)
            self.cache["net"] = initial_network(self.cache[source])
        self.number, self.work, self.net = number, self.cache[source], self.cache["net"]

    def fit(self, parameters, config):
        fill(self.net, parameters)
        x, y = self.work.examples(int(config["round"]) - 1, self.number)
        train(self.net, x, y, self.work.batch, self.work.lr)
        return arrays(self.net), len(x), {}


class Timed(FedAvg):
    """FedAvg that records the end of each round."""

    def aggregate_fit(self, server_round, results, failures):
        if failures:
            sys.exit(f"a client failed: {failures[0]}")
        made = super().aggregate_fit(server_round, results, failures)
        self.last = parameters_to_ndarrays(made[0])
        record.round()
        return made


strategy = Timed(
    fraction_fit=1.0,
    fraction_evaluate=0.0,
    min_fit_clients=work.clients,
    min_available_clients=work.clients,
    initial_parameters=ndarrays_to_parameters(work.initial),
    on_fit_config_fn=lambda round: {"round": round},
)


def server(_):
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=work.rounds))


run_simulation(
    server_app=ServerApp(server_fn=server),
    client_app=ClientApp(client_fn=client),
    num_supernodes=work.clients,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
record.write(place, "flwr", strategy.last)
