"""The rounds in fluke: its FedAVG, or its Ditto, with our order of the examples."""

from __future__ import annotations

import contextlib

import torch

# torchvision of the package index is for GPUs; beside a torch for the CPU its import fails because
# these operations are missing, which nothing here uses
with contextlib.suppress(RuntimeError):
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from shared import Record, arrays, asked, initial_network

work, place = asked()
record = Record()
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


class Watch(FederationObserver):
    """Records the end of each round."""

    def end_round(self, round: int) -> None:
        record.round()


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
made = (Ditto if work.lam else FedAVG)(work.clients, Splitter(), settings)
torch.set_num_threads(1)
made.attach(Watch())
made.run(work.rounds, eligible_perc=1.0, finalize=False)
record.write(place, "fluke-fl", arrays(made.server.model))
