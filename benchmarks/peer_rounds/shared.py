"""What the peers' scripts share: the work as arrays, and the record of their rounds."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np


class Work:
    """Clients' examples, the order in which each round uses them, and the initial model."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.x, self.y = arrays["x"], arrays["y"]  # [clients, n, ...], [clients, n]
            self.order = arrays["order"]  # [rounds, clients, n]
            self.initial = [arrays[f"p{i}"] for i in range(int(arrays["parameters"]))]
            self.kind, self.batch = str(arrays["kind"]), int(arrays["batch"])
            self.lr, self.lam = float(arrays["lr"]), float(arrays["lam"])
        self.rounds, self.clients, self.size = self.order.shape

    def examples(self, round: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's examples in the order of a round."""
        rows = self.order[round, client]
        return self.x[client][rows], self.y[client][rows]


class Record:
    """The times at which rounds ended, and the models at the end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round(self) -> None:
        """A round has ended."""
        self.ends.append(time.time())

    def write(self, path: str, package: str, params: list[np.ndarray]) -> None:
        """Write the record beside the final model."""
        np.savez(path, **{f"p{i}": p for i, p in enumerate(params)})
        made = {"ends": self.ends, "version": f"{package} {version(package)}"}
        Path(path).with_suffix(".json").write_text(json.dumps(made))


def asked() -> tuple[Work, str]:
    """The work and the place of the results, from the command line."""
    return Work(sys.argv[1]), sys.argv[2]


def network(kind: str):
    """The network of a workload."""
    from torch import nn

    if kind == "cnn":
        first = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))


def initial_network(work: Work):
    """The network with the initial parameters."""
    import torch

    torch.set_num_threads(1)
    net = network(work.kind)
    fill(net, work.initial)
    return net


def fill(net, arrays) -> None:
    """Give a network these parameters."""
    import torch

    with torch.no_grad():
        for p, a in zip(net.parameters(), arrays, strict=True):
            p.copy_(torch.as_tensor(np.asarray(a)))


def arrays(net) -> list[np.ndarray]:
    """The parameters of a network."""
    return [p.detach().numpy().copy() for p in net.parameters()]


def train(net, x: np.ndarray, y: np.ndarray, batch: int, lr: float) -> None:
    """One pass over the examples, in their order."""
    import torch

    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for a, b in zip(
        torch.from_numpy(x).split(batch), torch.from_numpy(y).split(batch), strict=True
    ):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(a), b).backward()
        optimiser.step()
