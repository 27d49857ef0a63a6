"""FedPW: weights by losses and by agreement; small changes are dropped, stable ones enlarged.

Guan, Huang, Guo, Yuan, Yang and Ye, "Rethinking fair federated learning from parameter and client
view", NeurIPS 2025. With D_i = w - w_i, l_i the mean loss during local training, and
u_i = sum_j <D_i, D_j>:

    weights   a_i <- (1 - b) a_i + b l_i / (sum of l), p <- (p + a) / (sum), b = beta l_mean / (that
              of the first round); the same with u gives p'; the weights are rho p + (1 - rho) p',
              rho = sd(p) / (sd(p) + sd(p'))
    dropped   from the second round on, the share r_i = min(1, n r (1/l_i) / sum(1/l)) of the
              coordinates with the smallest |D_i| of each tensor is set to 0
    enlarged  in the weighted mean g, the share r of the coordinates of each tensor with the least
              deviation over clients is multiplied by 1 + (mean |dropped|) / (mean |g| there), if
              this quotient is below 1
    w <- w - g

Reconstructed, as the paper's text was not available: for the deviations every client's D_i is
divided by its norm in the tensor, and every coordinate by its mean size over clients; negative u_i
count as 0. Changes or deviations that differ by less than 1/4096 of the largest are taken in their
order. With a part of the clients, all sums are over the cohort, and p of the others stays.
r = beta = 0 is FedAvg with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from isonomy.blocks.descent import along, start, step
from isonomy.blocks.vectors import gram, rows
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree


class Weights(NamedTuple):
    """Weights by one quantity: p, its moving shares a, and the first round's mean (or 0)."""

    p: Tensor  # [clients]
    a: Tensor  # [clients]
    first: Tensor


class Server(NamedTuple):
    """The model, and weights by losses and by agreement."""

    params: Params
    losses: Weights
    products: Weights


@dataclass(frozen=True)
class FedPW(Algorithm[Server]):
    """Parameter and client view: weights by losses and agreement, sparse changes."""

    name: ClassVar[str] = "fedpw"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Guan et al., NeurIPS 2025"
    reveals: ClassVar[str] = "each client's model and loss"

    beta: float = option(0.3, "pace of the weights", search=Grid((0.1, 0.3, 0.5)))
    r: float = option(
        0.3, "mean share of changes that are dropped or enlarged", search=Grid((0.1, 0.3, 0.5))
    )

    def __post_init__(self) -> None:
        for name in ("beta", "r"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number from 0 to 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model, and equal weights."""
        p = torch.full((clients,), 1 / clients, dtype=torch.float64)
        begin = Weights(p, torch.zeros_like(p), torch.zeros((), dtype=torch.float64))
        return Server(params, begin, begin)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Weights; then the sparse weighted mean."""
        params = server.params
        got = cohort.gather(self.local, {"params": params})
        changes = tree.tmap(lambda new, old: old - new, got.value["params"], params)
        losses = got.value["loss"].to(torch.float64)
        agreement = gram(rows(changes)).sum(1).clamp(min=0)
        started = bool(server.losses.first > 0)
        by_loss = moved(server.losses, got.ids, losses, self.beta)
        by_product = moved(server.products, got.ids, agreement, self.beta)
        weight = mixed(by_loss.p[got.ids], by_product.p[got.ids])
        cohort.record(weights=weight)
        cut = torch.zeros_like(losses)
        if started and self.r > 0:
            inverse = 1 / losses.clamp(min=1e-12)
            cut = (len(losses) * self.r * inverse / inverse.sum()).clamp(max=1)

        def combined(w: Tensor, change: Tensor) -> Tensor:
            return w - sparse_mean(change, weight, cut, self.r if started else 0.0)

        return Server(tree.tmap(combined, params, changes), by_loss, by_product)

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    @phase("gather", params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train, and the mean loss of the batches on the way."""
        params, zero = message["params"], torch.zeros(())

        def one(carry: Tree, batch: Batch) -> Tree:
            now, memory, total, steps = carry
            g, loss = grad_and_value(task.loss)(now, batch)
            now, memory = step(client.work, client.rate, now, memory, g)
            return now, memory, total + loss, steps + 1

        begin = (params, start(client.work, params), zero, zero)
        params, _, total, steps = along(one, begin, client)
        return {"params": params, "loss": total / steps.clamp(min=1)}, client.state


def moved(old: Weights, ids: Tensor, value: Tensor, beta: float) -> Weights:
    """The weights after a round with this quantity of the cohort's clients."""
    mean = value.mean()
    first = old.first if bool(old.first > 0) else mean
    pace = float((beta * mean / first).clamp(max=1)) if bool(first > 0) else 0.0
    share = value / value.sum() if bool(value.sum() > 0) else torch.full_like(value, 1 / len(value))
    a = (1 - pace) * old.a[ids] + pace * share
    p = old.p[ids] + a
    p = p / p.sum() * old.p[ids].sum()  # the others keep their weights
    return Weights(old.p.index_copy(0, ids, p), old.a.index_copy(0, ids, a), first)


def mixed(p: Tensor, other: Tensor) -> Tensor:
    """Rho p + (1 - rho) p', both with sum 1."""
    p, other = p / p.sum(), other / other.sum()
    spread, more = p.std(correction=0), other.std(correction=0)
    whole = spread + more
    rho = spread / whole if bool(whole > 1e-12) else torch.tensor(0.5, dtype=p.dtype)
    return rho * p + (1 - rho) * other


def sparse_mean(change: Tensor, weight: Tensor, cut: Tensor, r: float) -> Tensor:
    """The weighted mean of one tensor's changes [clients, ...], without the share `cut` of each.

    The share r of its coordinates that deviate least between clients is enlarged.
    """
    flat = change.flatten(1)
    width = flat.shape[1]
    dropped = smallest(flat.abs(), (cut * width).round())
    g = weight.to(flat.dtype) @ torch.where(dropped, 0.0, flat)
    count = round(r * width)
    if count:
        scaled = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
        scaled = scaled / scaled.abs().mean(0, keepdim=True).clamp(min=1e-12)
        deviation = (scaled - scaled.mean(0)).square().mean(0).sqrt()
        stable = smallest(deviation.unsqueeze(0), torch.tensor([count]), 1.0).squeeze(0)
        lost = flat[dropped].abs().mean() if bool(dropped.any()) else flat.new_zeros(())
        there = g[stable].abs().mean()
        ratio = lost / there if bool(there > 0) else there
        if bool(ratio < 1):
            g = torch.where(stable, g * (1 + ratio), g)
    return g.reshape(change.shape[1:])


def smallest(values: Tensor, count: Tensor, unit: float = 1e-30) -> Tensor:
    """Where each row [rows, width] has its `count` [rows] smallest values, the first of equal ones.

    Values that differ by less than 1/4096 of the row's largest, or of `unit` if that is more, are
    equal, so that rounding orders nothing: in a network with two outputs, for example, the changes
    of both have the same size, and their deviations are rounding errors beside sizes of 1.

    >>> smallest(torch.tensor([[3.0, 1.0, 1.0, 2.0]]), torch.tensor([2])).tolist()
    [[False, True, True, False]]
    """
    largest = values.max(1, keepdim=True).values.clamp(min=unit)
    level = (values / largest * _LEVELS).round().to(torch.int64)
    at = torch.zeros(len(level), _LEVELS + 1, dtype=torch.int64)
    up_to = at.scatter_add_(1, level, torch.ones_like(level)).cumsum(1)  # values of each level
    wanted = count.to(torch.int64).unsqueeze(1)
    last = torch.searchsorted(up_to, wanted)  # the level of which some may be left out
    before = torch.where(last > 0, up_to.gather(1, (last - 1).clamp(min=0)), 0)
    partly = level == last
    return (level < last) | (partly & (partly.cumsum(1) <= wanted - before))


_LEVELS = 4096
