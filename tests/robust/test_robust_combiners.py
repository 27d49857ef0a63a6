"""Every combiner against plain numpy, its edges, and what public code gets wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from isonomy.errors import ConfigError
from isonomy.robust.combiners import (
    COMBINERS,
    Bulyan,
    Clip,
    GeometricMedian,
    KLoss,
    KNorm,
    Krum,
    Median,
    MultiKrum,
    TrimmedMean,
    attackers,
    make,
)

N, D = 11, 6
ROWS = torch.tensor(np.random.default_rng(0).normal(size=(N, D)), dtype=torch.float32)
ROWS[3] *= 30  # the one that does not belong
SIZES = torch.arange(1.0, N + 1)
EVERY = [kind() for kind in COMBINERS.values()]


def combined(rule, rows=ROWS, weight=SIZES, losses=None):
    if rule.losses and losses is None:
        losses = torch.arange(float(len(rows)))
    return rule.combine(rows, weight.double(), losses).numpy()


def krum_order(rows: np.ndarray, f: int) -> np.ndarray:
    """Indices by Krum's score, written with loops."""
    scores = []
    for i in range(len(rows)):
        apart = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(len(rows)) if j != i)
        scores.append(sum(apart[: max(len(rows) - f - 2, 1)]))
    return np.argsort(scores, kind="stable")


def test_median_and_trimmed_mean():
    rows = ROWS.numpy()
    for count in (N, N - 1):
        assert combined(Median(), ROWS[:count], SIZES[:count]) == pytest.approx(
            np.median(rows[:count], axis=0)
        )
    trimmed = np.sort(rows, axis=0)[2:-2].mean(0)
    assert combined(TrimmedMean(expected=2)) == pytest.approx(trimmed, rel=1e-5)
    assert combined(TrimmedMean(expected=0.2)) == pytest.approx(trimmed, rel=1e-5)


def test_krum_and_multi_krum():
    rows, f = ROWS.numpy().astype(np.float64), 2
    order = krum_order(rows, f)
    assert combined(Krum(expected=f)) == pytest.approx(rows[order[0]])
    best, sizes = order[: N - f], SIZES.numpy()
    mean = (rows[best] * sizes[best, None]).sum(0) / sizes[best].sum()
    assert combined(MultiKrum(expected=f)) == pytest.approx(mean, rel=1e-4)
    kept = combined(MultiKrum(expected=f, keep=3), weight=torch.ones(N))
    assert kept == pytest.approx(rows[order[:3]].mean(0), rel=1e-4)


def test_bulyan():
    rows, f = ROWS.numpy().astype(np.float64), 2
    left, picked = list(range(N)), []
    for _ in range(N - 2 * f):
        picked.append(left.pop(int(krum_order(rows[left], f)[0])))
    chosen = rows[picked]
    middle = np.median(chosen, axis=0)
    expected = [
        np.mean(sorted(chosen[:, j], key=lambda v, j=j: abs(v - middle[j]))[: N - 4 * f])
        for j in range(D)
    ]
    assert combined(Bulyan(expected=f)) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_clip_and_k_norm():
    rows, sizes = ROWS.numpy().astype(np.float64), SIZES.numpy()
    norms = np.linalg.norm(rows, axis=1)
    for most, rule in ((np.median(norms), Clip()), (0.7, Clip(norm=0.7))):
        cut = rows * np.minimum(1, most / norms)[:, None]
        assert combined(rule) == pytest.approx((cut * sizes[:, None]).sum(0) / sizes.sum(), 1e-4)
    short = np.argsort(norms)[: N - 2]
    mean = (rows[short] * sizes[short, None]).sum(0) / sizes[short].sum()
    assert combined(KNorm(expected=2)) == pytest.approx(mean, rel=1e-4)


def test_k_loss_and_the_authors_rank():
    """The paper: the k-th largest loss, k attackers; the authors' code: one rank lower."""
    losses = torch.tensor([0.1, 0.9, 0.5, 0.7])
    rows = torch.eye(4)
    for f, k in ((1, 1), (2, 3), (3, 2)):
        assert combined(KLoss(expected=f), rows, torch.ones(4), losses)[k] == 1
    assert combined(KLoss(expected=2, rank="code"), rows, torch.ones(4), losses)[2] == 1
    assert combined(KLoss(expected=0), rows, torch.ones(4), losses)[1] == 1  # the largest
    assert combined(KLoss(expected=9, rank="code"), rows, torch.ones(4), losses)[0] == 1


def test_geometric_median():
    rows, share = ROWS.numpy().astype(np.float64), SIZES.numpy() / SIZES.sum().item()
    found = minimize(
        lambda z: (share * np.linalg.norm(rows - z, axis=1)).sum(), rows.mean(0), tol=1e-12
    )
    tight = GeometricMedian(steps=1000, stop=0.0)
    assert combined(tight) == pytest.approx(found.x, abs=1e-4)
    heavy = torch.tensor([1.0, 1.0, 10.0])  # more than half of the weight decides
    assert combined(tight, torch.eye(3), heavy) == pytest.approx([0, 0, 1], abs=1e-3)


@pytest.mark.parametrize("rule", EVERY, ids=lambda r: r.name)
def test_common_to_all(rule):
    """One update is itself; equal ones are what they are; the order does not matter, but for
    Bulyan, whose last picks are between pairs that tie (a defence orders clients by number).
    """
    assert combined(rule, ROWS[:1], SIZES[:1]) == pytest.approx(ROWS[0].numpy(), rel=1e-5)
    same = ROWS[:1].expand(5, -1)
    assert combined(rule, same, SIZES[:5]) == pytest.approx(ROWS[0].numpy(), rel=1e-5)
    turn = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    losses = torch.rand(N, generator=torch.Generator().manual_seed(2))
    straight = combined(rule, losses=losses)
    turned = combined(rule, ROWS[turn], SIZES[turn], losses[turn])
    if rule.name != "bulyan":
        assert turned == pytest.approx(straight, rel=1e-4, abs=1e-6)
    for count in (2, 3, 4):  # too few for most promises: still a finite update
        assert np.isfinite(combined(rule, ROWS[:count], SIZES[:count])).all()


@pytest.mark.parametrize("rule", [r for r in EVERY if not r.losses], ids=lambda r: r.name)
def test_a_few_wild_updates_do_little(rule):
    """Two of eleven a thousand times as long: the mean is lost, the combiners are not."""
    wild = ROWS.clone()
    wild[3] = ROWS[2]
    honest = wild.mean(0)
    wild[:2] = 1000.0
    assert float((wild.mean(0) - honest).norm()) > 100
    assert np.linalg.norm(combined(rule, wild, torch.ones(N)) - honest.numpy()) < 5


@pytest.mark.parametrize(
    "rule", [Median(), TrimmedMean(), Krum(), Bulyan(), GeometricMedian(stop=0.0)]
)
def test_what_was_sent_does_not_matter_to_these(rule):
    moved = combined(rule, ROWS + 3, torch.ones(N)) - 3
    assert moved == pytest.approx(combined(rule, ROWS, torch.ones(N)), abs=1e-4)


# --- bugs of public code --------------------------------------------------------------------------


def test_the_median_is_by_coordinate_and_not_one_number():
    """`np.median(points)` without an axis adds a single number to the whole model."""
    rows = torch.tensor([[0.0, 10.0], [1.0, 20.0], [2.0, 90.0]])
    got = combined(Median(), rows, torch.ones(3))
    assert got.tolist() == [1.0, 20.0]
    assert got.tolist() != [np.median(rows.numpy())] * 2


def test_krum_squares_distances():
    """By unsquared distances another one wins here."""
    rows = torch.tensor([[0.0], [3.0], [3.9], [4.2], [7.0]])
    points, f = rows.numpy().ravel(), 0

    def winner(power: int) -> int:
        scores = [
            sum(sorted(abs(p - q) ** power for j, q in enumerate(points) if j != i)[: 5 - f - 2])
            for i, p in enumerate(points)
        ]
        return int(np.argmin(scores))

    for rows in (torch.tensor(list(p)).unsqueeze(1) for p in itertools.product(range(6), repeat=5)):
        points = rows.numpy().ravel().astype(float)
        if winner(1) != winner(2) and len(set(points)) == 5:
            break
    else:
        pytest.fail("no example found")
    got = combined(Krum(expected=0), rows.float(), torch.ones(5))
    assert got == pytest.approx([points[winner(2)]])
    assert got != pytest.approx([points[winner(1)]])


def test_krum_goes_by_the_expected_number_and_not_by_five():
    got = [combined(Krum(expected=f)).tolist() for f in range(7)]
    rows = ROWS.numpy().astype(np.float64)
    for f in range(7):
        assert got[f] == pytest.approx(rows[krum_order(rows, f)[0]].tolist())
    clustered = torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4], [9.0], [9.0], [9.0], [9.0]])
    few, many = (combined(Krum(expected=f), clustered, torch.ones(9)) for f in (2, 5))
    assert few[0] < 1
    assert many[0] == 9


# --- options --------------------------------------------------------------------------------------


def test_expected():
    assert [attackers(e, 10) for e in (0, 0.2, 0.3, 0.7, 3, 0.99)] == [0, 2, 3, 7, 3, 9]
    assert make("krum", {"expected": "attack"}, attacked=True).expected == "attack"
    assert Krum(expected=4).enough(11)
    assert not Krum(expected=4).enough(10)
    assert Bulyan(expected=2).enough(11)
    assert not Bulyan(expected=2).enough(10)
    assert TrimmedMean(expected=2).enough(5)
    assert not TrimmedMean(expected=2).enough(4)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("krom", {}, "unknown defence 'krom'"),
        ("krum", {"expected": -1}, "expected = -1"),
        ("krum", {"expected": 1.5}, "share below 1 or a whole number"),
        ("krum", {"expected": "some"}, "expected = 'some'"),
        ("krum", {"expected": True}, "expected = True"),
        ("krum", {"expected": "attack"}, "no attack"),
        ("krum", {"f": 2}, "'krum' has no option 'f'"),
        ("multi_krum", {"keep": 0}, "keep = 0"),
        ("clip", {"norm": 0}, "norm = 0"),
        ("median", {"k": 1}, "has no options"),
        ("geometric_median", {"steps": 0}, "steps = 0"),
        ("geometric_median", {"smooth": 0.0}, "smooth = 0.0"),
        ("k_loss", {"rank": "first"}, "'paper', 'code'"),
    ],
)
def test_bad_options_are_one_sentence(name, options, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        make(name, options)
