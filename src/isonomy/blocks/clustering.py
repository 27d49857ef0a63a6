"""Clusters of clients, from the gradients that they sent: k-means, and the number of clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import one_hot

from isonomy.core import random, tree
from isonomy.core.client import Client
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree

STARTS, FEW = 50, 5  # restarts of k-means: for the result, and to count clusters
PIECE = 2**18  # columns that are multiplied at a time
STEPS = 50  # most iterations of each restart
ROOM = 2**22  # most elements of a tensor that holds several reference draws
DRAWS = 100  # reference draws that the number of clusters is compared with
SURE = 0.95  # share of the reference draws that a real number of clusters must exceed
DROP = math.log(2)  # one more cluster must halve the dispersion, beyond its effect on noise


def halves(task: Task, params: Params, client: Client) -> Tree:
    """The gradients of the mean loss over every other training example, and over the rest.

    Their mean is the client's gradient, and their difference shows how much of it is noise. For a
    client with a single example both are its gradient.
    """
    size = client.sizes[0]
    counts = torch.stack([(size + 1) // 2, size // 2]).to(torch.float32)
    total = None
    for page in client.pages("train"):
        both = tree.stack([grad(_every_other(task, page, first))(params) for first in (0, 1)])
        total = both if total is None else tree.add(total, both)

    def mean(t: Tensor) -> Tensor:
        each = t / counts.clamp(min=1).reshape(2, *[1] * (t.dim() - 1))
        return torch.where(size > 1, each, each[:1].expand_as(each))

    return tree.tmap(mean, total)


def _every_other(task: Task, page: Batch, first: int) -> Callable[[Params], Tensor]:
    """The summed loss of every second example, starting with the first or the second."""
    part = Batch(*(column[first::2] for column in page))
    return lambda params: (task.losses(params, part) * part.weight).sum()


class Clusters(NamedTuple):
    """Each point's cluster, and the weighted sum of squares within clusters.

    Clusters are numbered by total weight, the largest first.
    """

    labels: Tensor
    dispersion: Tensor


def cluster_clients(halves: Tree, sizes: Tensor, ids: Tensor, *, count: int, most: int) -> Tensor:
    """Each client's cluster, from the stacked `halves` of all clients, [clients, 2, ...].

    Clients are weighted by size, because the noise in a mean decreases with it. There are `count`
    clusters or, if it is 0, as many as `count_clusters` finds, at most `most`.
    """
    weight = sizes.to(torch.float64) / float(sizes.max())
    signal = points(tree.tmap(lambda t: (t[:, 0] + t[:, 1]) / 2, halves))
    if count == 0:
        noise = points(tree.tmap(lambda t: (t[:, 0] - t[:, 1]) / 2, halves))
        count = count_clusters(signal, noise, weight, ids, most)
    return kmeans(signal, weight, ids, count).labels


def points(stacked: Tree) -> Tensor:
    """Points [n, n] with the same lengths and distances as the n stacked trees."""
    products = torch.zeros((), dtype=torch.float64)
    for leaf in tree.leaves(stacked):
        flat = leaf.reshape(leaf.shape[0], -1)
        for first in range(0, flat.shape[1], PIECE):  # in double precision, one piece at a time
            piece = flat[:, first : first + PIECE].to(torch.float64)
            products = products + piece @ piece.T
    values, vectors = torch.linalg.eigh(products)
    made: Tensor = vectors * values.clamp(min=0).sqrt()
    return made


def kmeans(at: Tensor, weight: Tensor, ids: Tensor, count: int, starts: int = STARTS) -> Clusters:
    """Weighted k-means of points [..., n, d] from k-means++ centres; the best of all restarts.

    Random draws belong to the points' ids, so the order of the points does not matter.
    """
    at = at - (at * weight.unsqueeze(-1)).sum(-2, keepdim=True) / weight.sum()
    return _lloyd(at, weight, _initial_centres(at, weight, ids, count, starts))


def _initial_centres(at: Tensor, weight: Tensor, ids: Tensor, count: int, starts: int) -> Tensor:
    """Centres [..., starts, count, d] of k-means++ (Arthur and Vassilvitskii, 2007).

    Points are drawn with probability proportional to the squared distance from the nearest centre
    drawn before, by the Gumbel-max trick.
    """
    u = random.uniform(random.key(starts, ids), "centres", (count, starts)).to(at.dtype)
    gumbel = -torch.log(-torch.log(u)).movedim(0, -1)  # [count, starts, n]
    nearest = torch.ones((), dtype=at.dtype)
    centres: list[Tensor] = []
    for draw in gumbel:
        score = torch.log(nearest * weight) + draw
        best = score.expand(*at.shape[:-2], starts, len(ids)).argmax(-1)
        centres.append(_rows(at, best))
        gap = _gaps(centres[-1], at)
        nearest = gap if len(centres) == 1 else torch.minimum(nearest, gap)
    return torch.stack(centres, -2)


def _gaps(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances [..., n, m] between points [..., n, d] and [..., m, d]."""
    lengths = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    return (lengths - 2 * a @ b.mT).clamp(min=0)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows [..., s, d] of `values` [..., n, d] at `index` [..., s]."""
    return values.gather(-2, index.unsqueeze(-1).expand(*index.shape, values.shape[-1]))


def _lloyd(at: Tensor, weight: Tensor, centres: Tensor) -> Clusters:
    """Lloyd's iteration from all centres [..., starts, clusters, d] at once; the best result."""
    labels = None
    for _ in range(STEPS):
        gaps = _gaps(at.unsqueeze(-3), centres)
        new = gaps.argmin(-1)
        if labels is not None and torch.equal(new, labels):
            break
        labels = new
        member = one_hot(labels, centres.shape[-2]).to(at.dtype) * weight.unsqueeze(-1)
        mass = member.sum(-2).unsqueeze(-1)
        means = member.mT @ at.unsqueeze(-3) / mass.clamp(min=torch.finfo(at.dtype).tiny)
        centres = torch.where(mass > 0, means, centres)
    spread = (gaps.min(-1).values * weight).sum(-1)
    least, best = spread.min(-1)
    chosen = new.gather(-2, best[..., None, None].expand(*best.shape, 1, new.shape[-1]))
    return Clusters(_ordered(chosen.squeeze(-2), at, weight, centres.shape[-2]), least)


def _ordered(labels: Tensor, at: Tensor, weight: Tensor, count: int) -> Tensor:
    """Number clusters by weight, the largest first; ties by distance from the centre, far first."""
    member = one_hot(labels, count).to(at.dtype) * weight.unsqueeze(-1)
    mass, out = member.sum(-2), (member.mT @ at).square().sum(-1)
    outer = torch.argsort(out, dim=-1, descending=True)
    heavier = torch.argsort(mass.gather(-1, outer), dim=-1, descending=True, stable=True)
    return outer.gather(-1, heavier).argsort(-1).gather(-1, labels)


def count_clusters(signal: Tensor, noise: Tensor, weight: Tensor, ids: Tensor, most: int) -> int:
    """The number of clusters in the points, 1 if there are none; `noise` is each point's noise.

    With k clusters the dispersion is W_k. The result is the largest k for which the drop from
    W_(k-1) to W_k is explained neither by noise nor by points without clusters. That is: the drop
    halves the dispersion beyond the mean drop in draws of pure noise; in standard deviations of
    these draws it exceeds their mean by more than any of them does for any k; and by the same
    measure it exceeds the drop in most draws of points that have the same spread but no clusters.
    The draws are the noise, or the points, rotated at random among clients. They are references as
    in the gap statistic of Tibshirani, Walther and Hastie (2001), but measured instead of assumed.
    At most one cluster fewer than clients is considered.
    """
    top = min(most, len(ids) - 1)
    if top < 2:
        return 1
    signal = signal - (signal * weight.unsqueeze(-1)).sum(0) / weight.sum()
    drops = _drops(signal, weight, ids, top)
    usual, spread, highest = _reference(noise, weight, ids, top)
    real = (drops - usual > DROP) & (drops - usual > spread * highest.max())
    usual, spread, highest = _reference(signal, weight, ids, top)
    real &= drops - usual > spread * torch.quantile(highest, SURE)
    return int(real.nonzero().max()) + 2 if bool(real.any()) else 1


def _reference(at: Tensor, weight: Tensor, ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The drops of randomly rotated points: mean and standard deviation for each k, and for each
    draw the largest distance from the mean, in standard deviations.

    The drops vary more the nearer k is to the number of clients, so they are compared in units of
    their own deviation; otherwise large k would hide what small k show.
    """
    many = max(1, ROOM // (FEW * len(ids) ** 2))  # draws per tensor
    parts = [_rotated(at, weight, ids, i, min(many, DRAWS - i)) for i in range(0, DRAWS, many)]
    chance = torch.cat([_drops(part, weight, ids, top) for part in parts])
    usual = chance.mean(0)
    spread = chance.std(0).clamp(min=torch.finfo(chance.dtype).tiny)
    return usual, spread, ((chance - usual) / spread).max(1).values


def _rotated(at: Tensor, weight: Tensor, ids: Tensor, first: int, count: int) -> Tensor:
    """Draws [count, n, d] of the points, rotated at random among the clients.

    They have the same covariance and no clusters. The noise of a client of weight w has variance
    proportional to 1 / w, so the points are scaled before and after.
    """
    root, n = weight.sqrt().unsqueeze(-1), len(ids)
    turns = []
    for name in ("there", "back"):  # rows belong to clients, so their order does not matter
        rows = random.normal(random.key(first, ids), name, (count, n))
        turns.append(torch.linalg.qr(rows.to(at.dtype).movedim(0, 1))[0])
    made: Tensor = turns[0] @ (turns[1].mT @ (at * root)) / root
    return made


def _drops(at: Tensor, weight: Tensor, ids: Tensor, top: int) -> Tensor:
    """The drops log W_(k-1) - log W_k for k = 2, ..., top."""
    ends = [kmeans(at, weight, ids, k, FEW).dispersion for k in range(1, top + 1)]
    spread = torch.stack(ends, -1)
    least = (1e-9 * spread[..., :1]).clamp(min=torch.finfo(at.dtype).tiny)
    logs = torch.maximum(spread, least).log()
    return logs[..., :-1] - logs[..., 1:]
