"""The rounds as one would write them in PyTorch, without a framework."""

from __future__ import annotations

import copy

import torch
from shared import Record, arrays, asked, fill, initial_network, train

work, place = asked()
net, record = initial_network(work), Record()
own = [copy.deepcopy(net) for _ in range(work.clients)] if work.lam else []
for round in range(work.rounds):
    total = [torch.zeros_like(p) for p in net.parameters()]
    for client in range(work.clients):
        model = copy.deepcopy(net)
        x, y = work.examples(round, client)
        train(model, x, y, work.batch, work.lr)
        with torch.no_grad():
            for t, p in zip(total, model.parameters(), strict=True):
                t += p
        if work.lam:  # Ditto: the client's own model, drawn towards the server's
            optimiser = torch.optim.SGD(own[client].parameters(), lr=work.lr)
            pairs = zip(
                torch.from_numpy(x).split(work.batch),
                torch.from_numpy(y).split(work.batch),
                strict=True,
            )
            for a, b in pairs:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(own[client](a), b).backward()
                with torch.no_grad():
                    for v, w in zip(own[client].parameters(), net.parameters(), strict=True):
                        v.grad += work.lam * (v - w)
                optimiser.step()
    fill(net, [t / work.clients for t in total])
    record.round()
record.write(place, "torch", [a for one in (net, *own) for a in arrays(one)])
