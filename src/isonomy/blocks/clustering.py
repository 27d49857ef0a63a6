"""Clusters of clients, from what each of them sent: k-means, and how many clusters there are."""

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

STARTS, FEW = 50, 5  # first centres that k-means tries: for the result, and for a mere count
PIECE = 2**18  # numbers of each tree that are multiplied at a time
STEPS = 50  # of each start, at most
ROOM = 2**22  # numbers in the largest tensor of many draws at once
DRAWS = 100  # of each reference that the number of clusters is held against
SURE = 0.95  # share of the draws without clusters that a real number of clusters exceeds
DROP = math.log(2)  # a cluster more must halve the dispersion, beyond what it does to noise


def halves(task: Task, params: Params, client: Client) -> Tree:
    """The gradients of the mean loss over every other training example, and over the rest.

    Their mean tells where the client pulls, and their difference how much of that is chance. A
    client with a single example gives its gradient twice.
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
    """The summed loss of every second example, from the first or the second on."""
    part = Batch(*(column[first::2] for column in page))
    return lambda params: (task.losses(params, part) * part.weight).sum()


class Clusters(NamedTuple):
    """Each point's cluster, heaviest first, and the weighted sum of squares within clusters."""

    labels: Tensor
    dispersion: Tensor


def found(halves: Tree, sizes: Tensor, ids: Tensor, *, count: int, most: int) -> Tensor:
    """Each client's cluster, from all clients' `halves` stacked, [clients, 2, ...].

    Clients weigh by size, as the chance in a mean falls with it. `count` clusters, or if it is 0
    as many as `how_many` finds, `most` at most.
    """
    weight = sizes.to(torch.float64) / float(sizes.max())
    signal = points(tree.tmap(lambda t: (t[:, 0] + t[:, 1]) / 2, halves))
    if count == 0:
        noise = points(tree.tmap(lambda t: (t[:, 0] - t[:, 1]) / 2, halves))
        count = how_many(signal, noise, weight, ids, most)
    return kmeans(signal, weight, ids, count).labels


def points(stacked: Tree) -> Tensor:
    """Points [n, n] with the lengths and distances that the n stacked trees have as vectors."""
    products = torch.zeros((), dtype=torch.float64)
    for leaf in tree.leaves(stacked):
        flat = leaf.reshape(leaf.shape[0], -1)
        for first in range(0, flat.shape[1], PIECE):  # in double precision a piece at a time
            piece = flat[:, first : first + PIECE].to(torch.float64)
            products = products + piece @ piece.T
    values, vectors = torch.linalg.eigh(products)
    made: Tensor = vectors * values.clamp(min=0).sqrt()
    return made


def kmeans(at: Tensor, weight: Tensor, ids: Tensor, count: int, starts: int = STARTS) -> Clusters:
    """Weighted k-means of points [..., n, d] with the starts of k-means++; the best end counts.

    Draws belong to the points' ids, so that the order of points does not matter.
    """
    at = at - (at * weight.unsqueeze(-1)).sum(-2, keepdim=True) / weight.sum()
    return _lloyd(at, weight, _spread_out(at, weight, ids, count, starts))


def _spread_out(at: Tensor, weight: Tensor, ids: Tensor, count: int, starts: int) -> Tensor:
    """Centres [..., starts, count, d]: points drawn in proportion to the squared distance from
    those drawn before (Arthur and Vassilvitskii, 2007), by Gumbel's trick.
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
    """Squared distances [..., n, m] of points [..., n, d] and [..., m, d]."""
    lengths = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    return (lengths - 2 * a @ b.mT).clamp(min=0)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows [..., s, d] of `values` [..., n, d] at `index` [..., s]."""
    return values.gather(-2, index.unsqueeze(-1).expand(*index.shape, values.shape[-1]))


def _lloyd(at: Tensor, weight: Tensor, centres: Tensor) -> Clusters:
    """Assign and average, from many starts at once [..., starts, clusters, d]; the best end."""
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
    """The heaviest cluster is the first; of equals, the one further out."""
    member = one_hot(labels, count).to(at.dtype) * weight.unsqueeze(-1)
    mass, out = member.sum(-2), (member.mT @ at).square().sum(-1)
    outer = torch.argsort(out, dim=-1, descending=True)
    heavier = torch.argsort(mass.gather(-1, outer), dim=-1, descending=True, stable=True)
    return outer.gather(-1, heavier).argsort(-1).gather(-1, labels)


def how_many(signal: Tensor, noise: Tensor, weight: Tensor, ids: Tensor, most: int) -> int:
    """The number of clusters that points show, 1 if none: `noise` is each point's chance part.

    With k clusters the dispersion is W_k. The number is the largest k for which the drop from
    W_(k-1) to W_k is neither chance nor what points without clusters show. That is: it halves the
    dispersion beyond what it does to draws of pure noise, more than in any of them for any k; and
    it is larger than in most draws of points that are spread like these but have no clusters.
    Such draws are the noise, or the points, mixed over clients at random: references as in the
    gap statistic of Tibshirani, Walther and Hastie (2001), but measured, not assumed. At most
    half of the clients' number is considered.
    """
    top = min(most, max(2, len(ids) // 2), len(ids) - 1)
    if top < 2:
        return 1
    signal = signal - (signal * weight.unsqueeze(-1)).sum(0) / weight.sum()
    drops = _drops(signal, weight, ids, top)
    usual, highest = _reference(noise, weight, ids, top)
    real = drops - usual > max(DROP, float(highest.max()))
    usual, highest = _reference(signal, weight, ids, top)
    real &= drops - usual > torch.quantile(highest, SURE)
    return int(real.nonzero().max()) + 2 if bool(real.any()) else 1


def _reference(at: Tensor, weight: Tensor, ids: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The mean drops of such points mixed at random, and each draw's highest above them."""
    many = max(1, ROOM // (FEW * len(ids) ** 2))  # draws at once
    parts = [_mixed_up(at, weight, ids, i, min(many, DRAWS - i)) for i in range(0, DRAWS, many)]
    chance = torch.cat([_drops(part, weight, ids, top) for part in parts])
    return chance.mean(0), (chance - chance.mean(0)).max(1).values


def _mixed_up(at: Tensor, weight: Tensor, ids: Tensor, first: int, count: int) -> Tensor:
    """Points [count, n, d] like these, by random rotations of the clients among each other.

    They have the same covariance and no clusters. What a client of weight w has by chance has
    variance 1 / w, so it is scaled before and after.
    """
    root, n = weight.sqrt().unsqueeze(-1), len(ids)
    turns = []
    for name in ("there", "back"):  # each client brings its own rows, whatever their order
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
