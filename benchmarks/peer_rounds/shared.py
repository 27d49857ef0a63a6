"""What the peers' scripts share: the work as arrays, and the record of their rounds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
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
            self.q, self.threads = float(arrays["q"]), int(arrays["threads"])
            self.kept = arrays["kept"].tolist()  # rounds after which the models are kept
        self.double = self.x.dtype == np.float64
        self.rounds, self.clients, self.size = self.order.shape

    def examples(self, round: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's examples in the order of a round."""
        rows = self.order[round, client]
        return self.x[client][rows], self.y[client][rows]


class Record:
    """The times at which rounds ended, and the models at the end."""

    def __init__(self, work: Work) -> None:
        self.kept, self.ends = work.kept, []
        self.models: dict[int, list[np.ndarray]] = {}
        self.spent = 0.0  # on keeping models, which is not counted

    def round(self, models: Callable[[], list[np.ndarray]]) -> None:
        """A round has ended; `models` gives the server's model and then the personal ones."""
        now = time.time()
        self.ends.append(now - self.spent)
        if len(self.ends) in self.kept:
            self.models[len(self.ends)] = models()
            self.spent += time.time() - now

    def write(self, path: str, package: str, params: list[np.ndarray]) -> None:
        """Write the record, the final models and those of rounds that are kept."""
        found = {**self.models, len(self.ends): params}
        np.savez(path, **{f"{n}-{i}": p for n in found for i, p in enumerate(found[n])})
        used = [package, "torch"] if package not in ("torch", "jax") else [package]
        versions = ", ".join(f"{name} {version(name)}" for name in used)
        made = {"ends": self.ends, "version": versions}
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

    torch.set_num_threads(work.threads)
    if work.double:
        torch.set_default_dtype(torch.float64)
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


def train(net, x: np.ndarray, y: np.ndarray, work: Work, towards=None) -> None:
    """One pass over the examples, in their order; Ditto draws a client's own model `towards` w."""
    import torch

    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    for a, b in zip(
        torch.from_numpy(x).split(work.batch), torch.from_numpy(y).split(work.batch), strict=True
    ):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(a), b).backward()
        if towards is not None:
            with torch.no_grad():
                for v, w in zip(net.parameters(), towards, strict=True):
                    v.grad += work.lam * (v - w)
        optimiser.step()


def mean_loss(net, x: np.ndarray, y: np.ndarray) -> float:
    """The mean loss over all examples of a client."""
    import torch

    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(net(torch.as_tensor(x)), torch.as_tensor(y)))


def q_fedavg(w, trained, losses, q: float, lipschitz: float):
    """Algorithm 2 of "Fair resource allocation in federated learning" (q-FedAvg), as printed.

    `w` is the server's model, `trained` the clients' models after training, and `losses` their mean
    losses at `w`; all of them lists, models lists of tensors or arrays.
    """
    total, weight = [0.0 * p for p in w], 0.0
    for model, loss in zip(trained, losses, strict=True):
        loss = loss + 1e-10
        steps = [lipschitz * (p - m) for p, m in zip(w, model, strict=True)]
        squares = float(sum((d**2).sum() for d in steps))
        total = [t + loss**q * d for t, d in zip(total, steps, strict=True)]
        weight += q * loss ** (q - 1) * squares + lipschitz * loss**q
    return [p - t / weight for p, t in zip(w, total, strict=True)]
