"""The rounds as one would write them in PyTorch, without a framework."""

from __future__ import annotations

import copy

import torch
from shared import Record, arrays, asked, fill, initial_network, mean_loss, q_fedavg, train

work, place = asked()
net, record = initial_network(work), Record(work)
own = [copy.deepcopy(net) for _ in range(work.clients)] if work.lam else []


def models():
    """The server's model and the clients' own ones."""
    return [a for one in (net, *own) for a in arrays(one)]


for round in range(work.rounds):
    total = [torch.zeros_like(p) for p in net.parameters()]
    trained, losses = [], []
    for client in range(work.clients):
        model = copy.deepcopy(net)
        x, y = work.examples(round, client)
        if work.q:  # q-FedAvg: the loss of the received model
            losses.append(mean_loss(net, x, y))
        train(model, x, y, work)
        if work.q:
            trained.append([p.detach() for p in model.parameters()])
        else:
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t += p
        if work.lam:  # Ditto: the client's own model, drawn towards the server's
            train(own[client], x, y, work, towards=list(net.parameters()))
    if work.q:
        before = [p.detach() for p in net.parameters()]
        fill(net, q_fedavg(before, trained, losses, work.q, 1 / work.lr))
    else:
        fill(net, [t / work.clients for t in total])
    record.round(models)
record.write(place, "torch", models())
