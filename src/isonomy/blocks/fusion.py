"""Fusing the clients' hypernets into one front for all of them, at the server.

Ways to do it, from hypernets [K, P] and some latent features with labels and groups of each client:
FusionNet, which gives every preference its own weights of the clients (HetPFL, eq. 10 and 16); and
the mean, tuned on those features (what the authors' code does).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import linear, relu

from isonomy.blocks import descent, objectives, preferences
from isonomy.blocks.objectives import Examples
from isonomy.blocks.pareto import hypervolume2, hypervolume_drawn, tchebycheff
from isonomy.blocks.trade_off import DRAWS, Terms, front_loss, latents
from isonomy.core import random, tree
from isonomy.core.client import Client
from isonomy.core.task import Batch, Params, Task
from isonomy.core.work import Work
from isonomy.models import hypernet as nets

Made = Callable[[Tensor], Tensor]
"""The hypernet that is used at a preference."""

UNITS = 16  # FusionNet's hidden units
BATCH = 128  # rows of each client in a step
ROWS = 4096  # by which fronts are compared, of all clients together
STARTS = 16  # clients that FusionNet may lean to at first
EVERY = 25  # steps between two looks at the front
ROUNDED = 2**24  # as integers, a client's draws add up the same in any order


class Shown(NamedTuple):
    """What a client shows for the fusion; rows [rows, ...] in an order of its own."""

    hypernet: Tensor
    latent: Tensor
    y: Tensor
    groups: Tensor
    weight: Tensor
    start: Tensor  # FusionNet's first weights and bias of this client [UNITS + 1]
    draw: Tensor


def shown(task: Task, body: Params, hypernet: Tensor, client: Client, rows: int) -> Shown:
    """A client's hypernet, and the latent features of some of its examples, at most `rows`."""
    latent, batch = latents(task, body, client), client.train
    width = latent.shape[0]
    order = random.permutation(client.key, "shown", client.sizes[0], width, 1)[0]
    place = torch.arange(rows)
    at = order[place.clamp(max=width - 1)]
    real = (place < client.sizes[0]).to(latent.dtype)
    at = torch.where(real > 0, at, order[0])
    bound = UNITS**-0.5
    start = (2 * client.uniform("fusion", (UNITS + 1,)) - 1) * bound
    draw = (client.uniform("fusion draw") * ROUNDED).to(torch.int64)
    return Shown(hypernet, latent[at], batch.y[at], batch.groups[at], real, start, draw)


def seed_of(got: Shown) -> Tensor:
    """A key for the server's own draws, whatever the order of the clients."""
    return random.key(got.draw.sum())


# --- FusionNet --------------------------------------------------------------------------------


def fusion_net(clients: int, objectives: int) -> Params:
    """FusionNet's parameters, all 0: every client weighs the same."""
    return {
        "weight1": torch.zeros(UNITS, objectives),
        "bias1": torch.zeros(UNITS),
        "weight2": torch.zeros(clients, UNITS),
        "bias2": torch.zeros(clients),
    }


def fusion_weights(net: Params, preference: Tensor, has: Tensor) -> Tensor:
    """Each client's weight [K] for a preference: not negative, adding up to 1.

    `has` is 1 for the clients whose hypernets are there. Linear, ReLU, Linear, sigmoid, and then
    divided by the sum.
    """
    hidden = relu(linear(preference, net["weight1"], net["bias1"]))
    each = torch.sigmoid(linear(hidden, net["weight2"], net["bias2"])) * has
    return each / each.sum(-1, keepdim=True).clamp(min=1e-12)


def fused(net: Params, hypernets: Tensor, has: Tensor, preference: Tensor) -> Tensor:
    """The hypernet of a preference, W(preference) . [beta_1, ..., beta_K]."""
    return fusion_weights(net, preference, has) @ hypernets


def train_net(
    task: Task, got: Shown, terms: Terms, *, steps: int, rate: float, count: int
) -> Params:
    """FusionNet for the clients that showed theirs, by eq. 16, from draws of their own.

    In a step every client takes part with its next rows, so all count the same, as in eq. 10. It
    starts with even weights or leaning to one client, whichever front has the most volume on what
    was shown: where hypernets have grown apart their mean may be of no use, and no gradient leads
    away from it. The best on the way is kept, by the same measure.
    """
    m, where, widths = len(terms.objectives), nets.head_of(task), terms.widths(task)
    clients, key = len(got.draw), seed_of(got)
    bound = m**-0.5
    first = (2 * random.uniform(key, "fusion first", (UNITS, m + 1)) - 1) * bound
    net = {
        "weight1": first[:, :m].contiguous(),
        "bias1": first[:, m].contiguous(),
        "weight2": got.start[:, :UNITS].contiguous(),
        "bias2": got.start[:, UNITS].contiguous(),
    }
    tables = vmap(lambda one: _examples(task, one, terms))(got)
    has, sizes = torch.ones(clients), got.weight.sum(1).to(torch.int64)
    work = Work(optimiser="adam", lr=rate)
    lr, memory = torch.tensor(rate), descent.start(work, net)
    sampler, rays = preferences.start(1, m, 1.0), _rays(key, steps, count, m)

    def loss(now: Params, at: Examples, lam: Tensor) -> Tensor:
        own = fused(now, got.hypernet, has, lam)  # [N, P]
        weight, bias = vmap(lambda h, ray: nets.made(h, ray, where))(own, lam)

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

    few = max(ROWS // clients, 1)
    seen = Batch(*(t[:, :few].flatten(0, 1) for t in (got.latent, got.y, got.groups, got.weight)))

    def volume(now: Params) -> float:
        def own(ray: Tensor) -> Tensor:
            return fused(now, got.hypernet, has, ray)

        return float(front_volume(task, own, seen, terms, key))

    leaning = _leaning(net["bias2"])[:: -(-clients // STARTS)]
    starts = [net, *({**net, "bias2": bias} for bias in leaning)]
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


def _leaning(bias: Tensor) -> Tensor:
    """A row for each client [K, K]: biases with which it has about nine tenths of the weight."""
    clients = len(bias)
    if clients == 1:
        return bias.unsqueeze(0)
    low = -2.0 - math.log(clients)  # sigmoid(low) is about exp(low)
    return bias + torch.where(torch.eye(clients, dtype=torch.bool), 2.0, low)


# --- the mean, tuned ----------------------------------------------------------------------------


def tuned(
    task: Task,
    got: Shown,
    terms: Terms,
    *,
    epochs: int,
    rate: float,
    count: int,
    patience: int = 10,
) -> Tensor:
    """The mean of the hypernets, trained on four fifths of what was shown.

    Before each epoch the front is measured on the last fifth; the best is kept, and training
    ends after `patience` epochs without a better one. It may be the mean itself.
    """
    m, where, widths, key = (
        len(terms.objectives),
        nets.head_of(task),
        terms.widths(task),
        seed_of(got),
    )
    real = got.weight.flatten() > 0
    rows = Batch(*(t.flatten(0, 1)[real] for t in (got.latent, got.y, got.groups, got.weight)))
    order = random.permutation(key, "tuned", torch.tensor(len(rows.y)), len(rows.y), 1)[0]
    cut = max(int(0.8 * len(order)), 1)
    train, held = (tree.take(rows, part) for part in (order[:cut], order[cut:]))
    table = _batch_examples(task, train, terms)
    now = got.hypernet.mean(0)
    best, volume, since = now, -1.0, 0
    work, lr = Work(optimiser="adam", lr=rate), torch.tensor(rate)
    memory, sampler = descent.start(work, now), preferences.start(1, m, 1.0)
    width = min(64, cut)
    steps = -(-cut // width)

    def loss(hypernet: Tensor, at: Examples, lam: Tensor) -> Tensor:
        return front_loss(hypernet, at, lam, where=where, widths=widths, terms=terms)[0]

    for epoch in range(epochs + 1):
        found = float(front_volume(task, lambda _, own=now: own, held, terms, key))  # type: ignore[misc]
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


def front_volume(task: Task, hypernet: Made, rows: Batch, terms: Terms, key: Tensor) -> Tensor:
    """The hypervolume of a front on rows of latent features, by 101 rays, each with a hypernet."""
    where, wanted = nets.head_of(task), terms.aims(task)

    def point(ray: Tensor) -> Tensor:
        weight, bias = nets.made(hypernet(ray), ray, where)
        return objectives.measures(task, rows.x @ weight.T + bias, rows, wanted)

    points = vmap(point)(preferences.grid(100, len(wanted)))
    if len(wanted) == 2:
        return hypervolume2(points, torch.ones(2))
    return hypervolume_drawn(points, random.uniform(key, "volume", (DRAWS, len(wanted))))


def _rays(key: Tensor, steps: int, count: int, m: int) -> Any:
    """Given numbers for preferences, step by step."""
    inner = (steps, count, m, preferences.TRIES)
    return preferences.Draws(
        random.normal(key, "fusion normal", inner),
        random.uniform(key, "fusion uniform", inner),
        random.uniform(key, "fusion part", (steps, count)),
    )


def _examples(task: Task, one: Shown, terms: Terms) -> Examples:
    return _batch_examples(task, Batch(one.latent, one.y, one.groups, one.weight), terms)


def _batch_examples(task: Task, rows: Batch, terms: Terms) -> Examples:
    return objectives.examples(rows.x, rows, terms.aims(task), task.levels, terms.code)
