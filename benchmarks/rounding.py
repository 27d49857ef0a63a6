"""Why models of the same rounds differ by more than rounding: units at a kink.

    python benchmarks/rounding.py CNN             the rounds of benchmarks/peers.py
    python benchmarks/rounding.py CNN --smooth    with a network that has no kinks
    python benchmarks/rounding.py Ditto

A plain loop runs in float32 and in float64 beside each other, with the same batches. ReLU and max
pooling have kinks: if a unit's input is closer to 0 than the rounding error, or if the two largest
inputs of a pool are, the two loops can be on different sides, and the gradient of that step differs
by a whole term instead of by rounding. Each round's row has the number of units on different sides,
among all of them, and the largest difference of the server's models, of the clients' after local
training and of Ditto's personal models.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import peers

sys.path.insert(0, str(Path(__file__).resolve().parent / "peer_rounds"))
from shared import Work, fill, network

Sides = list[Tensor]


def smooth(net: nn.Sequential) -> nn.Sequential:
    """The network with softplus and mean pooling."""
    others: dict[type, nn.Module] = {nn.ReLU: nn.Softplus(), nn.MaxPool2d: nn.AvgPool2d(2)}
    return nn.Sequential(*(others.get(type(layer), layer) for layer in net))


def step(net: nn.Sequential, x: Tensor, y: Tensor, work: Work, towards: list[Tensor]) -> Sides:
    """One step of descent; the side of the kink on which each unit is."""
    sides: Sides = []
    for layer in net:
        if isinstance(layer, nn.ReLU):
            sides.append(x > 0)
            x = layer(x)
        elif isinstance(layer, nn.MaxPool2d):
            x, chosen = nn.functional.max_pool2d(x, layer.kernel_size, return_indices=True)
            sides.append(torch.where(x > 0, chosen, -1))  # a pool of zeros has no gradient
        else:
            x = layer(x)
    params = list(net.parameters())
    gradient = torch.autograd.grad(nn.functional.cross_entropy(x, y), params)
    with torch.no_grad():
        for i, (p, g) in enumerate(zip(params, gradient, strict=True)):
            p -= work.lr * (g + work.lam * (p - towards[i]) if towards else g)
    return sides


def trained(
    nets: list[nn.Sequential], x: Tensor, y: Tensor, work: Work, towards: list[list[Tensor]]
) -> tuple[int, int]:
    """Train both networks on a client's examples: units on different sides, and all units."""
    different = units = 0
    for a, b in zip(x.split(work.batch), y.split(work.batch), strict=True):
        pairs = zip(nets, (a, a.double()), towards, strict=True)
        one, other = (step(net, inputs, b, work, origin) for net, inputs, origin in pairs)
        different += sum(int((s != t).sum()) for s, t in zip(one, other, strict=True))
        units += sum(s.numel() for s in one)
    return different, units


def gap(nets: list[nn.Sequential]) -> float:
    """The largest difference of two models."""
    pairs = zip(*(net.parameters() for net in nets), strict=True)
    return max(float((p.detach().double() - q.detach()).abs().max()) for p, q in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Units at a kink, and what follows from them.")
    parser.add_argument("work", choices=["W1", "CNN", "Ditto"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--smooth", action="store_true", help="a network without kinks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.npz"
        peers.write_work(options.work, options.rounds, path)
        work = Work(str(path))
    net = network(work.kind)
    fill(net, work.initial)
    server = [smooth(net) if options.smooth else net]
    server.append(copy.deepcopy(server[0]).double())
    own = [copy.deepcopy(server) for _ in range(work.clients if work.lam else 0)]
    print(f"{'round':>5} {'sides':>8} {'of':>11} {'server':>8} {'clients':>8} {'personal':>8}")
    for round in range(work.rounds):
        different = units = 0
        largest = 0.0
        total = [[torch.zeros_like(p) for p in net.parameters()] for net in server]
        origin = [[p.detach().clone() for p in net.parameters()] for net in server]
        for client in range(work.clients):
            x, y = (torch.from_numpy(a) for a in work.examples(round, client))
            nets = copy.deepcopy(server)
            counts = [trained(nets, x, y, work, [[], []])]
            if own:
                counts.append(trained(own[client], x, y, work, origin))
            different += sum(count[0] for count in counts)
            units += sum(count[1] for count in counts)
            largest = max(largest, gap(nets))
            for sums, net in zip(total, nets, strict=True):
                for t, p in zip(sums, net.parameters(), strict=True):
                    t += p.detach()
        for net, sums in zip(server, total, strict=True):
            fill(net, [t / work.clients for t in sums])
        personal = f"{max(gap(nets) for nets in own):8.1e}" if own else ""
        counted = f"{round + 1:5} {different:8,} {units:11,}"
        print(f"{counted} {gap(server):8.1e} {largest:8.1e} {personal}", flush=True)


if __name__ == "__main__":
    main()
