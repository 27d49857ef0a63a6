"""The server's own examples: a sample that clients no longer have, and a Gaussian copula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from algorithms.group_by_hand import people
from isonomy.config.schema import parse
from isonomy.core.client import Pool
from isonomy.data.server_data import gaussian_copula, with_server_data
from isonomy.errors import ConfigError
from isonomy.runs.build import build, check_remote


def as_set(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


def test_a_sample_is_taken_from_training_rows_only() -> None:
    _, made = people(1, clients=5, n=80)
    left, own = with_server_data(made, 0.1, 0.0, seed=3)
    total = int(made.sizes().sum())
    assert len(own.y) == round(0.1 * total)
    assert int(left.sizes().sum()) == total - len(own.y)
    for k in range(len(made)):
        mine, before = left.rows(k), made.rows(k)
        assert as_set(left.x[mine]) == as_set(made.x[before]) - as_set(own.x)
        for split in ("validation", "test"):
            assert torch.equal(left.x[left.rows(k, split)], made.x[made.rows(k, split)])
            assert not as_set(own.x) & as_set(made.x[made.rows(k, split)])
    rows = {tuple(r): i for i, r in enumerate(made.x.tolist())}
    at = [rows[tuple(r)] for r in own.x.tolist()]
    assert torch.equal(made.y[at], own.y)
    assert torch.equal(made.groups[at], own.groups)
    again = with_server_data(made, 0.1, 0.0, seed=3)[1]
    assert torch.equal(again.x, own.x)
    assert as_set(with_server_data(made, 0.1, 0.0, seed=4)[1].x) != as_set(own.x)


def test_every_client_keeps_an_example() -> None:
    _, made = people(1, clients=5, n=80)
    total = int(made.sizes().sum())
    most = (total - 5) / total
    left, own = with_server_data(made, most, 0.0, seed=0)
    assert left.sizes().tolist() == [1] * 5
    assert len(own.y) == total - 5
    for share in (0.99999, 1 / total):
        with pytest.raises(ConfigError, match=r"server_data\.share"):
            with_server_data(made, share, 0.0, seed=0)


def test_the_copula_keeps_margins_and_correlations() -> None:
    """A lognormal and a normal column with a rank correlation of .6, and an indicator of 20 %."""
    draw = np.random.default_rng(0)
    z = draw.multivariate_normal([0, 0], [[1, 0.62], [0.62, 1]], size=1500)
    table = np.column_stack([np.exp(z[:, 0]), 5 + z[:, 1], z[:, 1] > 0.84, np.full(1500, 2.0)])
    made = gaussian_copula(torch.tensor(table), 5_000, seed=1).numpy()
    assert set(made[:, 0]) <= set(table[:, 0])
    for q in (0.05, 0.5, 0.95):
        assert np.quantile(made[:, 0], q) == pytest.approx(np.quantile(table[:, 0], q), rel=0.1)
    wanted = spearmanr(table[:, 0], table[:, 1]).statistic
    assert spearmanr(made[:, 0], made[:, 1]).statistic == pytest.approx(wanted, abs=0.04)
    assert set(made[:, 2]) == {0.0, 1.0}
    assert made[:, 2].mean() == pytest.approx(table[:, 2].mean(), abs=0.02)
    assert set(made[:, 3]) == {2.0}
    assert 0.2 < np.corrcoef(made[:, 1], made[:, 2])[0, 1] < np.corrcoef(table[:, 1:3].T)[0, 1]


def test_synthetic_rows_are_added_and_need_a_table() -> None:
    _, made = people(1, clients=5, n=80)
    own = with_server_data(made, 0.1, 0.4, seed=3)[1]
    total = int(made.sizes().sum())
    assert len(own.y) == round(0.1 * total) + round(0.4 * total)
    assert own.y.dtype == made.y.dtype
    assert set(own.y.tolist()) <= {0, 1}
    assert set(own.groups[:, 1].tolist()) <= {0, 1, 2}
    from isonomy.data.server_data import synthetic_examples

    images = Pool(torch.zeros(3, 2, 2), torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ConfigError, match=r"server_data\.synthetic = 0"):
        synthetic_examples(images, 2, 0)


CONFIG = {
    "rounds": 1,
    "data": {"name": "points", "clients": 3},
    "algorithm": "guardfed",
    "server_data": {"share": 0.2, "synthetic": 0.1},
}


def test_only_algorithms_that_need_it_have_it() -> None:
    with_own = build(parse(CONFIG))
    without = build(parse(CONFIG | {"algorithm": "fedavg"}))
    assert with_own.server_data is not None
    assert without.server_data is None
    sizes = with_own.federation.sizes().sum(), without.federation.sizes().sum()
    assert int(sizes[0]) == int(sizes[1]) - round(0.2 * int(sizes[1]))


def test_a_real_federation_has_none() -> None:
    with pytest.raises(ConfigError, match="organiser of a real federation does not have"):
        check_remote(parse(CONFIG), 3)
