"""Matching: one assignment by hand, a brute-force check, and invariances."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from isonomy.blocks.matching import GlobalNeurons, Prior, best_assignment, gains, match, posterior

F = torch.float64


def flat(mean: list[float], sigma0: float) -> Prior:
    made = torch.tensor(mean, dtype=F)
    return Prior(made, torch.full_like(made, 1 / sigma0))


def sizes(n: int) -> torch.Tensor:
    return torch.arange(n, 0, -1)


# --- one assignment by hand -----------------------------------------------------------------------


def test_by_hand() -> None:
    """Two clients with two neurons of one number each; sigma = sigma0 = gamma = 1, mu0 = 0, J = 2.

    Client 0 has 2 and -1, so W = (2, -1), S = (2, 2), counts (1, 1) and 2 log(1 / 1) = 0.
    Client 1 has -1 and 2. To global neuron i a neuron v adds (v + W_i)^2 / 3 - W_i^2 / 2,
    as the r-th new one v^2 / 2 + 2 log(1 / 2) - 2 log r.
    """
    pool = GlobalNeurons(
        torch.tensor([[2.0], [-1.0]], dtype=F),
        torch.full((2, 1), 2.0, dtype=F),
        torch.ones(2, dtype=F),
    )
    v, one = torch.tensor([[-1.0], [2.0]]), torch.ones(1, dtype=F)
    got = gains(v, one, pool, flat([0.0], 1.0), clients=2, gamma=1.0, new=2)
    two = 2 * math.log(2)
    expected = [
        [1 / 3 - 2, 4 / 3 - 0.5, 0.5 - two, 0.5 - 2 * two],
        [16 / 3 - 2, 1 / 3 - 0.5, 2 - two, 2 - 2 * two],
    ]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)
    assert best_assignment(got).tolist() == [1, 0]  # 5 / 6 + 10 / 3, more than with any new one
    both = torch.tensor([[[2.0], [-1.0]], [[-1.0], [2.0]]])
    ones = torch.ones(2, 1, dtype=F)
    at = match(both, ones, flat([0.0], 1.0), sizes(2), gamma=1.0, grow=2.0, sweeps=3)
    assert at.tolist() == [[0, 1], [1, 0]]
    theta = posterior(both, ones, flat([0.0], 1.0), at)
    assert theta.flatten().tolist() == pytest.approx([4 / 3, -2 / 3])


def test_popularity_counts_twice_and_without_a_cap() -> None:
    """20 clients of 25 have it: 2 log(20 / 5). A cap at 10, or log alone, gives another number."""
    pool = GlobalNeurons(
        torch.zeros(1, 1, dtype=F), torch.ones(1, 1, dtype=F), torch.tensor([20.0])
    )
    got = gains(
        torch.zeros(1, 1), torch.ones(1, dtype=F), pool, flat([0.0], 1.0), clients=25, gamma=3.0,
        new=1,
    )  # fmt: skip
    assert got[0, 0].item() == pytest.approx(2 * math.log(4.0))
    assert got[0, 1].item() == pytest.approx(2 * math.log(3 / 25))


def test_the_prior_has_its_own_variance() -> None:
    """mu0 = 0.5, sigma0 = 4, sigma = 2: v = 3 alone gives (3 / 2 + 0.5 / 4) / (1 / 2 + 1 / 4)."""
    prior = flat([0.5], 4.0)
    half = torch.full((1, 1), 0.5, dtype=F)
    none = GlobalNeurons(
        torch.zeros(0, 1, dtype=F), torch.zeros(0, 1, dtype=F), torch.zeros(0, dtype=F)
    )
    v = torch.tensor([[[3.0]]])
    got = gains(v[0], half[0], none, prior, clients=2, gamma=1.0, new=1)
    expected = (1.5 + 0.125) ** 2 / 0.75 - 0.5**2 / 4 - 2 * math.log(2)
    assert got.item() == pytest.approx(expected)
    theta = posterior(v, half, prior, torch.zeros(1, 1, dtype=torch.int64))
    assert theta.item() == pytest.approx(1.625 / 0.75)


# --- no assignment is better ----------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("more", [0, 2])
def test_no_permutation_is_better(units: int, more: int) -> None:
    gain = torch.randn(units, units + more, generator=torch.Generator().manual_seed(units), dtype=F)
    columns = range(units + more)
    tried = max(
        sum(gain[row, c].item() for row, c in enumerate(chosen))
        for chosen in itertools.permutations(columns, units)
    )
    at = best_assignment(gain)
    assert len(set(at.tolist())) == units
    assert gain[torch.arange(units), at].sum().item() == pytest.approx(tried, abs=1e-12)


def added(neurons: np.ndarray, at: np.ndarray, j: int, mine: tuple[int, ...], o: dict) -> float:
    """What client j adds by matching as in `mine`, from the formula, entry by entry; a number at
    or above the others' width is a new neuron.
    """
    total, rank = 0.0, 0
    J, others = len(at), [k for k in range(len(at)) if k != j]
    width = max(at[k].max() for k in others) + 1
    for own, i in enumerate(mine):
        v = neurons[j, own]
        W = np.full_like(v, o["mu0"] / o["sigma0"])
        S = np.full_like(v, 1 / o["sigma0"])
        if i >= width:
            rank += 1
            total += 2 * math.log(o["gamma"] / J) - 2 * math.log(rank)
        else:
            mates = [(k, m) for k in others for m in range(at.shape[1]) if at[k, m] == i]
            for k, m in mates:
                W = W + neurons[k, m] / o["sigma"]
                S = S + 1 / o["sigma"]
            total += 2 * math.log(len(mates) / (J - len(mates)))
        both = (v / o["sigma"] + W) ** 2 / (1 / o["sigma"] + S)
        total += float((both - W**2 / S).sum())
    return total


def squeezed(at: np.ndarray, j: int) -> np.ndarray:
    """Numbers of the others' neurons first, without holes; then those that only j has."""
    others = sorted({int(i) for k in range(len(at)) if k != j for i in at[k]})
    own = sorted({int(i) for i in at[j]} - set(others))
    place = {i: n for n, i in enumerate([*others, *own])}
    return np.vectorize(place.get)(at)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sweeps", [1, 2, 50])
def test_the_client_matched_last_cannot_do_better(seed: int, sweeps: int) -> None:
    """Brute force over all its assignments: none adds more than the one found. (For the other
    clients this need not hold: the 2 log r of the r-th new neuron belongs to the matched client.)
    """
    random = np.random.default_rng(seed)
    units, clients = 3, 3
    o = {"sigma": 0.3, "sigma0": 2.0, "gamma": 1.5, "mu0": 0.1}
    base = random.normal(size=(units + 1, 4))
    neurons = np.stack([base[random.permutation(units + 1)[:units]] for _ in range(clients)])
    neurons = (neurons + 0.3 * random.normal(size=neurons.shape)).astype(np.float32)
    at = match(
        torch.from_numpy(neurons),
        torch.full((clients, 4), 1 / o["sigma"], dtype=F),
        flat([o["mu0"]] * 4, o["sigma0"]),
        sizes(clients),
        gamma=o["gamma"],
        grow=3.0,
        sweeps=sweeps,
    ).numpy()
    last = clients - 1
    now = squeezed(at, last)
    assert all(len(set(row)) == units for row in now)
    width = max(now[k].max() for k in range(last)) + 1
    ways = itertools.permutations(range(width + units), units)
    tried = max(added(neurons, now, last, way, o) for way in ways)
    found = added(neurons, now, last, tuple(now[last]), o)
    assert found == pytest.approx(tried, abs=1e-5)


def test_sweeps_correct_the_first_pass_and_may_add_neurons() -> None:
    """Two kinds of neurons, +-10 in one coordinate each; with small variance they stay apart."""
    neurons = torch.tensor([[[10.0, 0.0]], [[0.0, 10.0]], [[10.0, 0.1]]])
    ones = torch.full((3, 2), 10.0, dtype=F)
    options = {"gamma": 1.0, "grow": 3.0}
    at = match(neurons, ones, flat([0.0, 0.0], 1.0), sizes(3), sweeps=0, **options)
    assert at.flatten().tolist() == [0, 0, 0]
    at = match(neurons, ones, flat([0.0, 0.0], 1.0), sizes(3), sweeps=5, **options)
    assert at[0] == at[2]
    assert at[1] != at[0]
    at = match(
        neurons, ones, flat([0.0, 0.0], 1.0), sizes(3), sweeps=5, gamma=1.0, grow=1.0
    )  # there is room for one only
    assert at.flatten().tolist() == [0, 0, 0]


# --- what stays put -------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.001, 1.0, 7.0])
def test_the_same_neurons_match_as_they_are(gamma: float) -> None:
    neurons = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(1)).repeat(4, 1, 1)
    p = torch.ones(4, 5, dtype=F)
    at = match(neurons, p, flat([0.0] * 5, 1.0), sizes(4), gamma=gamma, grow=7.0, sweeps=5)
    assert torch.equal(at, torch.arange(6).repeat(4, 1))


def test_permuted_copies_are_matched_back() -> None:
    random = torch.Generator().manual_seed(2)
    base = torch.randn(20, 9, generator=random)
    orders = [torch.arange(20), *(torch.randperm(20, generator=random) for _ in range(4))]
    neurons = torch.stack([base[order] for order in orders])
    p, free = torch.ones(5, 9, dtype=F), flat([0.0] * 9, math.inf)
    at = match(neurons, p, free, sizes(5), gamma=1.0, grow=4.0, sweeps=5)
    assert torch.equal(at, torch.stack(orders))
    torch.testing.assert_close(posterior(neurons, p, free, at), base)


def test_the_order_of_clients_does_not_matter_even_of_one_size() -> None:
    random = torch.Generator().manual_seed(3)
    neurons = torch.randn(5, 4, 3, generator=random)
    p, free, n = torch.rand(5, 3, generator=random).double() + 0.5, flat([0.1] * 3, 1.0), 5
    order = torch.randperm(n, generator=random)
    same = torch.full((n,), 7)
    options = {"gamma": 2.0, "grow": 5.0, "sweeps": 5}
    at = match(neurons, p, free, same, **options)
    moved = match(neurons[order], p[order], free, same, **options)
    assert torch.equal(moved, at[order])


def test_unobserved_coordinates_do_not_count() -> None:
    """Precision 0: the coordinate adds nothing to any match, and 0 is what is known of it."""
    v = torch.tensor([[1.0, 5.0]])
    pool = GlobalNeurons(torch.tensor([[1.0, 0.0]], dtype=F), torch.tensor([[1.0, 0.0]], dtype=F),
                torch.ones(1, dtype=F))  # fmt: skip
    seen = torch.tensor([1.0, 0.0], dtype=F)
    got = gains(v, seen, pool, flat([0.0, 0.0], math.inf), clients=2, gamma=1.0, new=0)
    assert got.item() == pytest.approx((1 + 1) ** 2 / 2 - 1)
    one = torch.zeros(1, 1, dtype=torch.int64)
    theta = posterior(v.unsqueeze(0), seen.unsqueeze(0), flat([0.0, 0.0], math.inf), one)
    assert theta.tolist() == [[1.0, 0.0]]


def test_weights_that_diverged_do_not_stop_it() -> None:
    """The run itself says that training diverged; so the numbers have to reach it."""
    neurons = torch.tensor([[[1.0], [math.nan]], [[2.0], [3.0]]])
    p = torch.ones(2, 1, dtype=F)
    at = match(neurons, p, flat([0.0], 1.0), sizes(2), gamma=1.0, grow=1.0, sweeps=2)
    assert sorted(at[0].tolist()) == [0, 1]
    assert posterior(neurons, p, flat([0.0], 1.0), at).isnan().any()
