"""Fusing the clients' hypernets into one front for all clients, at the server.

The inputs are the hypernets [K, P] and, from each client, latent features, labels and groups of
some examples. There are three ways: FusionNet, which learns weights of the clients that depend on
the preference (HetPFL, eq. 10 and 16), the mean of the hypernets, trained further on those features
(what the authors' code does), and the one client's hypernet that is best on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import linear, relu

from isonomy.blocks import descent, objectives, preferences
from isonomy.blocks.objectives import Examples
from isonomy.blocks.pareto import tchebycheff
from isonomy.blocks.trade_off import DRAWS, Terms, front_loss
from isonomy.blocks.trade_off import front_volume as volume_of
from isonomy.core import random, tree
from isonomy.core.client import Client
from isonomy.core.task import Batch, Params, Task
from isonomy.core.work import Work
from isonomy.models import hypernet as nets

HypernetAt = Callable[[Tensor], Tensor]
"""The hypernet that is used at a preference."""

UNITS = 16  # hidden units of FusionNet
BATCH = 128  # rows of each client in a step
TUNED = 1024  # rows in a step of the tuned mean
ROWS = 4096  # rows of all clients together on which fronts are compared
STARTS = 16  # largest number of clients that are tried as FusionNet's starting point
HELD = 100  # fewest rows on which fronts are compared apart from training
EVERY = 25  # steps between two measurements of the front
ROUNDED = 2**24  # draws are integers, so that their sum does not depend on the clients' order


class FusionData(NamedTuple):
    """What a client reveals for the fusion; its rows are in random order."""

    hypernet: Tensor  # [P]
    latent: Tensor  # [rows, d]
    y: Tensor  # [rows]
    groups: Tensor  # [rows, attributes]
    weight: Tensor  # [rows]: 1 for an example, 0 for padding
    draw: Tensor  # a random integer, for the server's seed


def fusion_data(
    task: Task, body: Params, hypernet: Tensor, client: Client, rows: int
) -> FusionData:
    """A client's hypernet, and the latent features of up to `rows` of its examples."""
    width = max(client.widths[0], 1)
    order = random.permutation(client.key, "shown", client.sizes[0], width, 1)[0]
    place = torch.arange(rows)
    at = order[place.clamp(max=width - 1)]
    real = (place < client.sizes[0]).to(torch.float32)
    at = torch.where(real > 0, at, order[0])
    batch = client.pool.batch(client.starts[0] + at, real)
    latent = nets.features(task, body, batch.x)
    draw = (client.uniform("fusion draw") * ROUNDED).to(torch.int64)
    return FusionData(hypernet, latent, batch.y, batch.groups, real, draw)


def seed_of(data: FusionData) -> Tensor:
    """A key for the server's draws that does not depend on the order of the clients."""
    return random.key(data.draw.sum())


# --- FusionNet ------------------------------------------------------------------------------------


def fusion_net(clients: int, objectives: int) -> Params:
    """FusionNet's parameters, all 0: every client has the same weight."""
    return {
        "weight1": torch.zeros(UNITS, objectives),
        "bias1": torch.zeros(UNITS),
        "weight2": torch.zeros(clients, UNITS),
        "bias2": torch.zeros(clients),
    }


def fusion_weights(net: Params, preference: Tensor, has: Tensor) -> Tensor:
    """Each client's weight [K] for a preference: non-negative, with a sum of 1.

    `has` is 1 for the clients whose hypernets the server has. The network is Linear, ReLU, Linear,
    sigmoid; its outputs are divided by their sum.
    """
    hidden = relu(linear(preference, net["weight1"], net["bias1"]))
    each = torch.sigmoid(linear(hidden, net["weight2"], net["bias2"])) * has
    return each / each.sum(-1, keepdim=True).clamp(min=1e-12)


def fused(net: Params, hypernets: Tensor, has: Tensor, preference: Tensor) -> Tensor:
    """The hypernet of a preference, W(preference) . [beta_1, ..., beta_K]."""
    return fusion_weights(net, preference, has) @ hypernets


def train_net(
    task: Task,
    make: nets.Make,
    data: FusionData,
    terms: Terms,
    *,
    steps: int,
    rate: float,
    count: int,
    alone: bool,
) -> Params:
    """FusionNet for the clients that revealed their hypernets, by eq. 16.

    In each step every client contributes its next rows, so all have equal weight, as in eq. 10.
    Training starts with equal weights. With `alone`, it may also start with one client dominating,
    whichever front is largest: if the paper's hypernets differ much, their mean may be useless and
    have no gradient to leave it by. A fifth of the rows is held out, and the network whose front
    has the largest hypervolume on them on the way is kept.
    """
    m, widths = len(terms.objectives), terms.widths(task)
    clients, key = len(data.draw), seed_of(data)
    bound = m**-0.5
    first = (2 * random.uniform(key, "fusion first", (UNITS, m + 1)) - 1) * bound
    net = {
        "weight1": first[:, :m].contiguous(),
        "bias1": first[:, m].contiguous(),
        "weight2": torch.zeros(clients, UNITS),
        "bias2": torch.zeros(clients),
    }
    used, held = _split(data)
    tables = vmap(lambda one: _examples(task, one, terms))(used)
    has, sizes = torch.ones(clients), used.weight.sum(1).to(torch.int64)
    work = Work(optimiser="adam", lr=rate)
    lr, memory = torch.tensor(rate), descent.start(work, net)
    sampler, rays = preferences.start(1, m, 1.0), _rays(key, steps, count, m)

    def loss(now: Params, at: Examples, lam: Tensor) -> Tensor:
        own = fused(now, data.hypernet, has, lam)  # [N, P]
        weight, bias = vmap(make)(own, lam)

        def one(at: Examples) -> Tensor:
            outputs = at.latent @ weight.mT + bias.unsqueeze(-2)  # [N, n, o]
            each = objectives.losses(outputs, at, widths, terms.fairness)
            return tchebycheff(each, lam, terms.scalar).mean()

        return vmap(one)(at).mean()

    width = int(sizes.max().clamp(max=BATCH))

    def batch_of(t: int) -> Examples:
        at = (t * width + torch.arange(width)) % sizes.clamp(min=1).unsqueeze(-1)
        found: Examples = vmap(lambda table, rows: tree.take(table, rows))(tables, at)
        return found

    seen = _rows(held, max(ROWS // clients, 1))

    def volume(now: Params) -> float:
        def own(ray: Tensor) -> Tensor:
            return fused(now, data.hypernet, has, ray)

        return float(front_volume(task, make, own, seen, terms, key))

    starts = [net]
    if alone:
        dominated = _dominated(net["bias2"])[:: -(-clients // STARTS)]
        starts += [{**net, "bias2": bias} for bias in dominated]
    volumes = [volume(one) for one in starts]
    net = best = starts[volumes.index(max(volumes))]
    most = max(volumes)
    for t in range(steps):
        batch, lam = batch_of(t), preferences.sample(sampler, tree.take(rays, t))
        net, memory = descent.step(work, lr, net, memory, grad(loss)(net, batch, lam))
        if (t + 1) % EVERY == 0 or t + 1 == steps:
            found = volume(net)
            best, most = (net, found) if found >= most else (best, most)
    return best


def best_client(task: Task, make: nets.Make, data: FusionData, terms: Terms) -> Tensor:
    """The hypernet whose front has the largest hypervolume on the revealed examples."""
    seen, key = _rows(data, max(ROWS // len(data.draw), 1)), seed_of(data)
    volumes = [
        float(front_volume(task, make, lambda _, own=own: own, seen, terms, key))  # type: ignore[misc]
        for own in data.hypernet
    ]
    return data.hypernet[volumes.index(max(volumes))]


def _split(data: FusionData) -> tuple[FusionData, FusionData]:
    """The data without every fifth row, and these rows; rows are in random order.

    Both are all of the data if fewer than `HELD` rows would be held out.
    """
    out = torch.arange(data.weight.shape[1]) % 5 == 4
    if float(data.weight[:, out].sum()) < HELD:
        return data, data

    def only(at: Tensor) -> FusionData:
        parts = {name: getattr(data, name)[:, at] for name in ("latent", "y", "groups", "weight")}
        return data._replace(**parts)

    return only(~out), only(out)


def _rows(data: FusionData, each: int) -> Batch:
    """Up to so many rows of each client."""
    return Batch(
        *(t[:, :each].flatten(0, 1) for t in (data.latent, data.y, data.groups, data.weight))
    )


def _dominated(bias: Tensor) -> Tensor:
    """One row for each client, [K, K]: biases that give it about nine tenths of the weight."""
    clients = len(bias)
    if clients == 1:
        return bias.unsqueeze(0)
    low = -2.0 - math.log(clients)  # sigmoid(low) is about exp(low)
    return bias + torch.where(torch.eye(clients, dtype=torch.bool), 2.0, low)


# --- the tuned mean -------------------------------------------------------------------------------


def tuned(
    task: Task,
    make: nets.Make,
    data: FusionData,
    terms: Terms,
    *,
    epochs: int,
    rate: float,
    count: int,
    patience: int = 5,
) -> Tensor:
    """The mean of the hypernets, trained on four fifths of the revealed examples.

    Before each epoch the front is measured on the other fifth. The best hypernet is kept, which may
    be the mean itself, and training ends after `patience` epochs without an improvement.
    """
    m, widths, key = len(terms.objectives), terms.widths(task), seed_of(data)
    real = data.weight.flatten() > 0
    rows = Batch(*(t.flatten(0, 1)[real] for t in (data.latent, data.y, data.groups, data.weight)))
    order = random.permutation(key, "tuned", torch.tensor(len(rows.y)), len(rows.y), 1)[0]
    cut = max(int(0.8 * len(order)), 1)
    train, held = (tree.take(rows, part) for part in (order[:cut], order[cut:]))
    table = _batch_examples(task, train, terms)
    now = data.hypernet.mean(0)
    best, volume, since = now, -1.0, 0
    work, lr = Work(optimiser="adam", lr=rate), torch.tensor(rate)
    memory, sampler = descent.start(work, now), preferences.start(1, m, 1.0)
    width = min(TUNED, cut)
    steps = -(-cut // width)

    def loss(hypernet: Tensor, at: Examples, lam: Tensor) -> Tensor:
        return front_loss(hypernet, at, lam, make=make, widths=widths, terms=terms)[0]

    for epoch in range(epochs + 1):
        found = float(front_volume(task, make, lambda _, own=now: own, held, terms, key))  # type: ignore[misc]
        best, volume, since = (now, found, 0) if found > volume else (best, volume, since + 1)
        if since >= patience or epoch == epochs or not len(held.y):
            break
        own = random.key(key, epoch)
        shuffled = random.permutation(own, "tuned", torch.tensor(cut), cut, 1)[0]
        rays = _rays(own, steps, count, m)
        for t in range(steps):
            batch = tree.take(table, shuffled[(t * width + torch.arange(width)) % cut])
            lam = preferences.sample(sampler, tree.take(rays, t))
            now, memory = descent.step(work, lr, now, memory, grad(loss)(now, batch, lam))
    return best


def front_volume(
    task: Task, make: nets.Make, hypernet: HypernetAt, rows: Batch, terms: Terms, key: Tensor
) -> Tensor:
    """The hypervolume, on rows of latent features, of the front at 101 preferences."""

    def heads(rays: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = vmap(lambda ray: make(hypernet(ray), ray))(rays)
        return found

    draws = random.uniform(key, "volume", (DRAWS, len(terms.objectives)))
    return volume_of(task, heads, rows, terms, 100, draws)


def _rays(key: Tensor, steps: int, count: int, m: int) -> preferences.Draws:
    """Random numbers for the preferences of each step."""
    inner = (steps, count, m, preferences.TRIES)
    return preferences.Draws(
        random.normal(key, "fusion normal", inner),
        random.uniform(key, "fusion uniform", inner),
        random.uniform(key, "fusion part", (steps, count)),
    )


def _examples(task: Task, one: FusionData, terms: Terms) -> Examples:
    return _batch_examples(task, Batch(one.latent, one.y, one.groups, one.weight), terms)


def _batch_examples(task: Task, rows: Batch, terms: Terms) -> Examples:
    return objectives.examples(rows.x, rows, terms.aims(task), task.levels, terms.code)
