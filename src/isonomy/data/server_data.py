"""Examples that the server itself holds: a sample of training examples, and synthetic ones.

Some methods judge clients' models by examples of the server's own (root data). In a simulation they
are a share of all training examples, drawn at random and taken away from the clients; never
validation or test examples. Synthetic examples can be added: draws from a Gaussian copula that is
fitted to the sample (features, label and groups together).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.client import Pool
from isonomy.core.examples import SPLITS, Split
from isonomy.data.federation import Federation, arrange
from isonomy.errors import ConfigError

LEAST = 10  # examples of a sample


def with_server_data(
    federation: Federation, share: float, synthetic: float, seed: int
) -> tuple[Federation, Pool]:
    """The federation without the examples that the server holds, and these.

    `share` and `synthetic` are relative to the number of all training examples. Every client keeps
    at least one of its own.
    """
    if federation.pages is not None:
        raise ConfigError(
            "server_data takes examples away from clients, which packed data do not allow; use "
            "data that are not packed."
        )
    rows = federation.row_numbers(torch.arange(len(federation)))
    count = round(share * len(rows))
    score = random.uniform(random.key(seed), "server data", (len(rows),)).double()
    sizes = federation.sizes()
    client = torch.arange(len(federation)).repeat_interleave(sizes)
    kept = torch.zeros(len(federation), dtype=torch.float64)
    kept = kept.scatter_reduce(0, client, score, "amax")
    free = score < kept[client]
    if count < LEAST or count > int(free.sum()):
        raise ConfigError(
            f"server_data.share = {share:g} of {len(rows):,} training examples is {count}; give a "
            f"share with {LEAST} to {int(free.sum()):,} examples (every client keeps one)."
        )
    taken = torch.where(free, score, math.inf).topk(count, largest=False).indices.sort().values
    given = torch.zeros(len(federation.y), dtype=torch.bool)
    given[rows[taken]] = True
    own = Pool(federation.x[given], federation.y[given], federation.groups[given])
    if drawn := round(synthetic * len(rows)):
        made = synthetic_examples(own, drawn, seed)
        own = Pool(*(torch.cat(pair) for pair in zip(own, made, strict=True)))
    return _without(federation, given), own


def _without(federation: Federation, given: Tensor) -> Federation:
    parts: dict[Split, list[Tensor]] = {split: [] for split in SPLITS}
    for k in range(len(federation)):
        for split in SPLITS:
            at = federation.rows(k, split)
            rows = torch.arange(at.start, at.stop)
            parts[split].append(rows[~given[rows]] if split == "train" else rows)
    order, ranges = arrange(parts)
    x, y, groups = federation.x[order], federation.y[order], federation.groups[order]
    return replace(federation, x=x, y=y, groups=groups, ranges=ranges)


def synthetic_examples(own: Pool, count: int, seed: int) -> Pool:
    """Examples drawn from a Gaussian copula of these: features, label and groups together."""
    width = math.prod(own.x.shape[1:])
    if own.x.dim() != 2:
        raise ConfigError(
            "server_data.synthetic draws rows of a table, but these data are images or the like; "
            "set server_data.synthetic = 0."
        )
    columns = [own.x.double(), own.y.double().unsqueeze(1), own.groups.double()]
    made = gaussian_copula(torch.cat(columns, 1), count, seed)
    x, y, groups = made[:, :width], made[:, width], made[:, width + 1 :]
    return Pool(x.to(own.x.dtype), y.to(own.y.dtype), groups.to(own.groups.dtype))


def gaussian_copula(table: Tensor, count: int, seed: int) -> Tensor:
    """Rows drawn from the Gaussian copula of a table [n, d], with its empirical margins.

    A column becomes normal scores z = Phi^-1(F(x)), F the empirical distribution function at the
    middle of its step; rows are drawn from N(0, R), R the correlations of the scores, and mapped
    back by F^-1(Phi(z)), so that every value is one of the column's own. For columns of few values,
    such as indicators, dependence comes out weaker than it is.
    """
    n = len(table)
    ordered = table.sort(0).values.T.contiguous()
    columns = table.T.contiguous()
    low = torch.searchsorted(ordered, columns)
    high = torch.searchsorted(ordered, columns, right=True)
    scores = torch.special.ndtri((low + high).double() / (2 * n))
    scores = scores - scores.mean(1, keepdim=True)
    spread = scores.square().mean(1, keepdim=True).sqrt()
    scores = torch.where(spread > 0, scores / spread.clamp(min=1e-12), 0.0)
    draws = random.normal(random.key(seed), "synthetic examples", (count, n)).double()
    z = draws @ scores.T / math.sqrt(n)  # its covariance is that of the scores
    at = (torch.special.ndtr(z) * n).to(torch.int64).clamp(max=n - 1)
    return ordered.gather(1, at.T).T
