"""Confidence limits for the mean losses of several cells, from sums over clients.

Losses are skewed: most are small and a few are large. A small sample often misses the large ones,
and then both its mean and its spread are too small, so a bound from the normal distribution, mean +
1.96 spread, covers far less often than it says. These bounds differ from it in three ways:

- Hall's transformation (Hall, "On the removal of skewness by transformation", 1992) of Student's t
  statistic. With T = sqrt(n) (mean - mu) / s and a = skewness / sqrt(n), the distribution of
  T + a T^2 / 3 + a^2 T^3 / 27 + a / 6 is near that of t with n - 1 degrees of freedom. Solved for
  mu, it gives mean - (3 / a) ((1 - a (t + a / 6))^(1/3) - 1) s / sqrt(n).
- The variance and the third moment of a cell are those of its own examples or, if larger, those
  together with `PRIOR` more examples that vary as the examples of all cells do. So a small cell
  that happens to have equal losses does not get an interval of width 0.
- Bonferroni's correction: the bounds of `upper_terms` hold for all cells jointly.

`limits` has both ends, each at its own level. The lower end is that of Student's t with the same
variance, which is cautious for losses that are skewed in this way.

They are approximate. Resampled from the losses of a logistic model on ADULT, they cover all means
jointly in at least 94 % of samples for 2 and 14 cells of 9 to 1,000 examples
(tests/core/test_confidence.py). They can fail for a cell whose mean comes from losses that are so
rare that the sample has none of them, if other cells have nothing like them: without a bound on
single losses, no method can exclude this (docs/certificate.md has an example). Cells with fewer
than `FEWEST` examples get no bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FEWEST = 9  # examples in a cell; coverage was not checked for smaller cells
PRIOR = 20.0  # how many examples of all cells are added to each cell
LEVEL = 0.95  # joint confidence


def upper_terms(
    count: Tensor, losses: Tensor, squares: Tensor, cubes: Tensor, level: float = LEVEL
) -> list[float | None]:
    """What to add to each cell's mean loss for an upper bound; all hold jointly at this level.

    The arguments are the number of losses in each cell [Z], their sums, the sums of their squares
    and of their cubes. None for a cell with fewer than FEWEST losses, and for all cells if no loss
    differs from the others in its cell.

    >>> few = [torch.tensor([20.0, 8.0]).double(), torch.tensor([4.0, 4.0]).double()]
    >>> [None if x is None else round(x, 2) for x in upper_terms(*few, few[1], few[1])]
    [0.22, None]
    """
    cells = max(int((count >= FEWEST).sum()), 1)
    found = _terms(count, losses, squares, cubes, (1 - level) / cells)
    return [None if one is None else one[1] for one in found]


def limits(
    count: Tensor, losses: Tensor, squares: Tensor, cubes: Tensor, alpha: float
) -> list[tuple[float, float]]:
    """Each cell's lower and upper limit of the mean loss, each missed with probability alpha.

    As `upper_terms`, for each cell by itself; (0, inf) where that has None.
    """
    out = []
    terms = _terms(count, losses, squares, cubes, alpha)
    for n, total, one in zip(count.tolist(), losses.tolist(), terms, strict=True):
        if one is None:
            out.append((0.0, math.inf))
        else:
            out.append((max(0.0, total / n - one[0]), total / n + one[1]))
    return out


def _terms(
    count: Tensor, losses: Tensor, squares: Tensor, cubes: Tensor, alpha: float
) -> list[tuple[float, float] | None]:
    """What to subtract from and to add to each cell's mean, for limits at alpha each."""
    from scipy.special import stdtrit  # slow to import, and only needed here

    known = count >= FEWEST
    out: list[tuple[float, float] | None] = [None] * len(count)
    if not bool(known.any()):
        return out
    n = count[known].double()
    mean = losses[known].double() / n
    raw = squares[known].double()
    second = (raw - n * mean.square()).clamp(min=0)
    third = cubes[known].double() - 3 * mean * raw + 2 * n * mean**3
    second = torch.where(second > 1e-12 * raw, second, 0.0)  # rounding errors of equal losses
    third = torch.where(second > 0, third, 0.0) * n / (n - 2)
    degrees = (n - 1).sum()
    variance, cubic = second.sum() / degrees, third.sum() / degrees
    if not float(variance) > 0:
        return out
    own = second / (n - 1), third / (n - 1)
    more = (second + PRIOR * variance) / (n - 1 + PRIOR), (third + PRIOR * cubic) / (n - 1 + PRIOR)
    spread = torch.maximum(own[0], more[0])
    skew = torch.maximum(more[1] / spread**1.5, _ratio(*own)).clamp(min=0)
    for z, size, s, g in zip(known.nonzero().flatten().tolist(), n, spread, skew, strict=True):
        quantile = float(stdtrit(float(size) - 1, 1 - alpha))
        error = math.sqrt(float(s / size))
        out[z] = (quantile * error, _hall(quantile, float(g / size.sqrt())) * error)
    return out


def _ratio(variance: Tensor, third: Tensor) -> Tensor:
    """The skewness; 0 where all losses are equal."""
    some = variance > 0
    return torch.where(some, third / torch.where(some, variance, 1.0) ** 1.5, 0.0)


def _hall(quantile: float, a: float) -> float:
    """The number of standard errors to add: minus the inverse of Hall's function at -quantile."""
    if a < 1e-6:
        return quantile
    return -3 / a * (math.cbrt(1 - a * (quantile + a / 6)) - 1)
