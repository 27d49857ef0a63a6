"""Joint upper bounds on mean losses: how often they cover, by simulation."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from isonomy import make_config
from isonomy.core.confidence import FEWEST, limits, upper_terms
from isonomy.runs.build import build

SIZES = [(2, 9), (14, 18), (14, 200), (2, 1000)]  # cells, examples in each


def logistic_losses(cells: int) -> list[np.ndarray]:
    """Losses like those of a logistic model in groups and, from four cells on, by label.

    Outputs are normal, labels follow them, and a hundredth of the labels is wrong, which makes a
    few large losses. Groups have different shares of positive labels, as sex and race in ADULT.
    """
    rng = np.random.default_rng(3)
    by_label = cells > 2
    groups = cells // 2 if by_label else cells
    out = []
    for centre in np.linspace(-3.0, -1.0, groups):
        o = centre + 1.8 * rng.standard_normal(400_000)
        y = rng.random(o.shape) < 1 / (1 + np.exp(-o))
        y ^= rng.random(o.shape) < 0.01
        loss = np.logaddexp(0, o) - y * o
        out += [loss[~y], loss[y]] if by_label else [loss]
    return out


def simulated(
    populations: list[np.ndarray], n: int, trials: int
) -> tuple[float, float, float, float]:
    """Joint coverage and mean width of these bounds, then those of the normal ones."""
    rng = np.random.default_rng(11)
    quantile = NormalDist().inv_cdf(1 - 0.05 / len(populations))
    means = np.array([p.mean() for p in populations])
    draws = np.stack([rng.choice(p, (trials, n)) for p in populations], 1)
    sums = [torch.as_tensor((draws**k).sum(-1)) for k in (1, 2, 3)]
    count = torch.full((len(populations),), float(n))
    terms = np.array(
        [upper_terms(count, *(s[i] for s in sums)) for i in range(trials)], dtype=float
    )
    plain = quantile * draws.std(-1) / n**0.5
    found = draws.mean(-1)
    covered, normally = (((found + t) >= means).all(1).mean() for t in (terms, plain))
    return float(covered), float(terms.mean()), float(normally), float(plain.mean())


@pytest.mark.parametrize(("cells", "n"), SIZES)
def test_coverage(cells: int, n: int) -> None:
    """95 % for all cells jointly, less the error of the simulation; the normal bounds do not."""
    covered, width, normally, plain = simulated(logistic_losses(cells), n, 1500)
    assert covered >= 0.94
    assert normally < covered
    if n >= 200:
        assert width < 1.7 * plain  # still of use


@pytest.mark.parametrize(("cells", "n"), SIZES)
def test_each_end_is_missed_as_rarely_as_stated(cells: int, n: int) -> None:
    """5 % for each end of each cell, plus the error of the simulation."""
    rng, trials, alpha = np.random.default_rng(12), 600, 0.05
    populations = logistic_losses(cells)
    means = np.array([p.mean() for p in populations])
    draws = np.stack([rng.choice(p, (trials, n)) for p in populations], 1)
    sums = [torch.as_tensor((draws**k).sum(-1)) for k in (1, 2, 3)]
    count = torch.full((cells,), float(n))
    ends = np.array([limits(count, *(s[i] for s in sums), alpha) for i in range(trials)])
    assert (ends[..., 0] <= draws.mean(-1)).all()
    assert (ends[..., 1] >= draws.mean(-1)).all()
    assert ((means < ends[..., 0]).mean(0) <= alpha + 0.025).all()
    assert ((means > ends[..., 1]).mean(0) <= alpha + 0.025).all()


def test_without_enough_losses_there_is_no_limit() -> None:
    count = torch.tensor([float(FEWEST - 1), 0.0, 20.0])
    sums = torch.tensor([4.0, 0.0, 10.0])
    found = limits(count, sums, sums, sums, 0.05)
    assert found[:2] == [(0.0, np.inf)] * 2
    assert 0 < found[2][0] < 0.5 < found[2][1] < 1


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "n"), SIZES)
def test_coverage_on_adult(cells: int, n: int) -> None:
    """Losses of a logistic model on ADULT by sex, or by sex and by race given the label (14)."""
    made = make_config(
        data={"name": "adult", "clients": 2, "protected": ["sex", "race"]},
        model={"name": "logistic"},
    )
    data = build(made).federation
    y, groups = data.y.numpy().astype(float), data.groups.numpy()
    x = np.hstack([data.x.numpy().astype(float), np.ones((len(y), 1))])
    w = np.zeros(x.shape[1])
    for _ in range(12):  # Newton's method, with a little weight decay
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(y) + 1e-6 * np.eye(len(w))
        w -= np.linalg.solve(hessian, x.T @ (p - y) / len(y) + 1e-6 * w)
    losses = np.logaddexp(0, x @ w) - y * (x @ w)
    if cells == 2:
        populations = [losses[groups[:, 0] == g] for g in (0, 1)]
    else:
        which = [(0, g) for g in range(2)] + [(1, g) for g in range(5)]
        populations = [losses[(groups[:, a] == g) & (y == v)] for a, g in which for v in (0, 1)]
    covered, _, normally, _ = simulated(populations, n, 4000)
    assert covered >= 0.94
    assert normally < 0.94


def test_fewer_than_a_stated_number_are_refused() -> None:
    """Two equal losses had an interval of width 0; now they have none."""
    count = torch.tensor([2.0, FEWEST - 1.0, FEWEST, 0.0])
    sums = [torch.tensor([0.6, 2.0, 3.0, 0.0])] * 3
    got = upper_terms(count, *sums)
    assert [t is None for t in got] == [True, True, False, True]


def test_equal_losses_have_a_width_from_the_other_cells() -> None:
    """A cell of equal losses is not known exactly; if no loss differs anywhere, nothing is said."""
    rng = np.random.default_rng(0)
    draws = np.stack([np.full(30, 0.3), rng.exponential(0.5, 30)])
    sums = [torch.as_tensor((draws**k).sum(-1)) for k in (1, 2, 3)]
    equal, other = upper_terms(torch.tensor([30.0, 30.0]), *sums)
    assert equal is not None
    assert other is not None
    assert 0 < equal < np.inf
    assert upper_terms(torch.tensor([30.0]), *(s[:1] for s in sums)) == [None]


def test_without_skewness_and_with_many_examples_it_is_students_t() -> None:
    """Symmetric losses: the quantile of t times the standard error (scipy as the oracle)."""
    from scipy.stats import t

    n = 400
    draws = np.repeat([0.2, 0.6], n // 2)
    sums = [torch.tensor([(draws**k).sum()]) for k in (1, 2, 3)]
    (got,) = upper_terms(torch.tensor([float(n)]), *sums)
    assert got == pytest.approx(t.ppf(0.95, n - 1) * draws.std(ddof=1) / n**0.5, rel=1e-6)


def test_halls_bound_solves_his_equation() -> None:
    """At the bound, T + a T^2 / 3 + a^2 T^3 / 27 + a / 6 is minus the quantile of t."""
    from scipy.stats import skew, t

    draws = np.random.default_rng(5).exponential(1.0, 80)
    n = len(draws)
    sums = [torch.tensor([(draws**k).sum()]) for k in (1, 2, 3)]
    (got,) = upper_terms(torch.tensor([float(n)]), *sums)
    assert got is not None
    a = skew(draws, bias=False) / n**0.5
    third = ((draws - draws.mean()) ** 3).sum() * n / (n - 2) / (n - 1)
    assert a == pytest.approx(third / draws.std(ddof=1) ** 3 / n**0.5)
    at = -got / (draws.std(ddof=1) / n**0.5)
    value = at + a * at**2 / 3 + a**2 * at**3 / 27 + a / 6
    assert value == pytest.approx(-t.ppf(0.95, n - 1), rel=1e-6)
