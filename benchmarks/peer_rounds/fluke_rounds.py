"""The rounds in fluke: its FedAVG, or its Ditto, with our order of the examples.

It has no q-FedAvg; this is written here with its interface.
"""

from __future__ import annotations

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # a torchvision for GPUs beside a torch for the CPU: its import fails because these operations
    # are missing, which nothing here uses
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.comm import Message
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from shared import Record, arrays, asked, fill, initial_network, mean_loss, q_fedavg

work, place = asked()
record = Record(work)
PASSES = 2 if work.lam else 1  # over the examples of a round


class Ordered(FastDataLoader):
    """A client's examples, each round in our order."""

    def __init__(self, client: int) -> None:
        first = [torch.from_numpy(a) for a in work.examples(0, client)]
        super().__init__(*first, num_labels=10, batch_size=work.batch, skip_singleton=False)
        self.client, self.passes = client, 0

    def __iter__(self):
        round = min(self.passes // PASSES, work.rounds - 1)
        self.tensors = [torch.from_numpy(a) for a in work.examples(round, self.client)]
        self.passes += 1
        return super().__iter__()


class Splitter:
    """Gives every client its own examples."""

    def assign(self, clients: int, batch: int):
        return ([Ordered(k) for k in range(clients)], [None] * clients), None


class QClient(Client):
    """Sends the loss of the received model besides its own."""

    def fit(self, override_local_epochs: int = 0) -> float:
        loss = mean_loss(self.model, *self.train_set.tensors)
        self.channel.send(Message(loss, "loss", self.index, inmemory=True), "server")
        return super().fit(override_local_epochs)


class QServer(Server):
    """Combines the models by q-FedAvg's rule."""

    def aggregate(self, eligible, client_models) -> None:
        losses = [self.channel.receive("server", c.index, "loss").payload for c in eligible]
        trained = [[p.detach() for p in model.parameters()] for model in client_models]
        before = [p.detach() for p in self.model.parameters()]
        fill(self.model, q_fedavg(before, trained, losses, work.q, 1 / work.lr))


class QFedAVG(FedAVG):
    """q-FedAvg."""

    def get_client_class(self):
        return QClient

    def get_server_class(self):
        return QServer


def models():
    """The server's model and the clients' own ones."""
    own = [client.personalized_model for client in made.clients] if work.lam else []
    return [a for net in (made.server.model, *own) for a in arrays(net)]


class Watch(FederationObserver):
    """Records the end of each round."""

    def end_round(self, round: int) -> None:
        record.round(models)


env = FlukeENV()
env.set_seed(0)
env.set_device("cpu")
more = {"tau": 1, "lam": work.lam, "model": initial_network(work)} if work.lam else {}
settings = DDict(
    client=DDict(
        batch_size=work.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=work.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        **more,
    ),
    server=DDict(weighted=True),
    model=initial_network(work),
)
algorithm = Ditto if work.lam else QFedAVG if work.q else FedAVG
made = algorithm(work.clients, Splitter(), settings)
torch.set_num_threads(work.threads)
made.attach(Watch())
made.run(work.rounds, eligible_perc=1.0, finalize=False)
record.write(place, "fluke-fl", models())
