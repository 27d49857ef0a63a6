"""Each method by hand, against independent programs, and in its limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from histograms import SEX, drawn, histogram
from numpy.typing import NDArray
from scipy.optimize import linprog

from isonomy.core.examples import Attribute
from isonomy.core.notions import NOTIONS
from isonomy.metrics import Counts
from isonomy.metrics.counts import Tally
from isonomy.metrics.group import accuracy, difference
from isonomy.metrics.scores import BINS, Scores
from isonomy.postprocess import Rule, fit, make
from isonomy.postprocess.calibration import calibrated, centres
from isonomy.postprocess.fair_lp import FairLP
from isonomy.postprocess.fedfact import Answers, FedFACT
from isonomy.postprocess.rule import Mixing, expected_tally

ALL = ("logofair", "fedfact", "fair_lp", "thresholds")
SMALL = {
    0: [(0.2, 0), (0.4, 0), (0.6, 1), (0.8, 1)],
    1: [(0.55, 0), (0.65, 1), (0.75, 1), (0.85, 1)],
}


def pooled(tally: Tally) -> Tally:
    return Tally(*(at.sum(0) for at in (tally.label, tally.predicted, tally.hit, tally.loss)))


def gap(rule: Rule, scores: Scores, notion: str) -> float:
    return float(difference(pooled(rule.tally(scores)), NOTIONS[notion]))


def error(rule: Rule, scores: Scores) -> float:
    return 1 - float(accuracy(pooled(rule.tally(scores))))


def chance(rule: Rule, level: int, *scores: float) -> list[float]:
    """The chances of class 1 of a first client's scores."""
    accept = rule.accept()[0, level]
    return [round(float(accept[round(s * BINS)]), 6) for s in scores]


# --- by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logofair", "fedfact"])
def test_demographic_parity_by_hand(name: str) -> None:
    """Plain rates are 1/2 (F) and 1 (M). A change of .25 costs .1 (M gives up .55), then .2 (F
    accepts .4), then .3 (M gives up .65) in sums of 2 eta - 1.
    """
    scores = histogram([SMALL])
    own = {"calibrate": "none"} if name == "logofair" else {"sharpness": 10_000.0}
    expected = {
        1.0: ([0, 0, 1, 1], [1, 1, 1, 1]),
        0.25: ([0, 0, 1, 1], [0, 1, 1, 1]),
        0.125: ([0, 0.5, 1, 1], [0, 1, 1, 1]),
        0.0: ([0, 1, 1, 1], [0, 1, 1, 1]),
    }
    for budget, (female, male) in expected.items():
        rule = fit(name, scores, budget=budget, **own)
        found = chance(rule, 0, 0.2, 0.4, 0.6, 0.8), chance(rule, 1, 0.55, 0.65, 0.75, 0.85)
        np.testing.assert_allclose(found, (female, male), atol=0.01)


def test_thresholds_lie_where_a_decision_gains_nothing() -> None:
    """At budget .25 M's price makes .55 (2 eta - 1 = .101) indifferent; in the gap above it, this
    is the lowest threshold. F's own price is the opposite, so its threshold is below a half.
    """
    rule = fit("logofair", histogram([SMALL]), budget=0.2, calibrate="none")
    female, male = rule.parts["edge"][0]
    assert female.tolist()[0] in range(201, 601)
    assert chance(rule, 0, 0.4) == [0.2]  # .05 of the rate of 4 examples
    assert chance(rule, 1, 0.55, 0.65) == [0, 1]
    assert male.tolist()[0] <= 650


def test_local_and_global_budgets_by_hand() -> None:
    """Two clients whose gaps cancel: no change is needed over all, but each alone is unfair."""
    scores = histogram([SMALL, {0: SMALL[1], 1: SMALL[0]}])
    whole = fit("logofair", scores, budget=0.0, calibrate="none")
    assert gap(whole, scores, "dp") == pytest.approx(0)
    assert error(whole, scores) == pytest.approx(2 / 16)  # only .55 of label 0 is wrong
    inside = fit("logofair", scores, budget=0.0, local_budget=0.0, calibrate="none")
    local = difference(inside.tally(scores), NOTIONS["dp"])
    np.testing.assert_allclose(local, 0, atol=1e-9)
    assert chance(inside, 0, 0.2, 0.4) == [0, 1]


def test_fair_lp_by_hand() -> None:
    """F has recall 1 of both classes (20 positives), M finds 5 of 10 positives. Lowering F's true
    positive rate costs 20 per unit, raising M's by predicting 1 at random costs 10.
    """
    counts = np.zeros((1, 3, 2, 2), dtype=np.int64)
    counts[0, 1] = [[10, 0], [0, 20]]
    counts[0, 2] = [[10, 0], [5, 5]]
    counts[0, 0] = counts[0, 1:].sum(0)
    given = Counts(counts, np.zeros((1, 3, 2)), SEX)
    rule = FairLP(notion="eo", budget=0.2).fit_counts(given)
    keep, give = rule.parts["keep"][0], rule.parts["give"][0]
    np.testing.assert_allclose(keep, [1, 0.4], atol=1e-9)
    np.testing.assert_allclose(give, [[0, 0], [0, 0.6]], atol=1e-9)


def test_group_thresholds_against_all_pairs_of_thresholds() -> None:
    """The best pair of thresholds within the budget is not better, and the best mixture little."""
    scores = drawn(3, [(60, 50), (40, 70)])
    group = scores.counts[:, 1:].sum(0).astype(np.float64)
    for notion, budget in itertools.product(("dp", "eo", "equalised_odds"), (0.3, 0.05)):
        rule = fit("thresholds", scores, notion=notion, budget=budget)
        assert gap(rule, scores, notion) <= budget + 1e-7
        used = [np.append(np.flatnonzero(at.sum(0)), BINS) for at in group]
        above = [
            np.stack([at[:, b:].sum(-1) for b in here])
            for at, here in zip(group, used, strict=True)
        ]
        both = np.stack(np.broadcast_arrays(above[0][:, None], above[1][None]), 2)  # [i, j, a, y]
        rate = {
            None: both.sum(-1) / group.sum((1, 2)),
            1: both[..., 1] / group[:, 1].sum(-1),
            0: both[..., 0] / group[:, 0].sum(-1),
        }
        spread = [np.ptp(rate[given], axis=-1) for given in NOTIONS[notion].given]
        right = (both[..., 1] - both[..., 0]).sum(-1) + group[:, 0].sum()
        best = right[np.max(spread, axis=0) <= budget + 1e-12].max() / group.sum()
        assert 1 - error(rule, scores) >= best - 1e-9
        assert 1 - error(rule, scores) <= best + 0.02


# --- independent programs ----------------------------------------------------------------------


def least_error_program(scores: Scores, budget: float, local: float | None) -> float:
    """The primal of the paper: decisions h in [0, 1] for every bin, most expected accuracy."""
    group = scores.counts[:, 1:].sum(2).astype(np.float64)  # [k, a, b]
    clients, _, bins = group.shape
    gain = group * (2 * centres(bins) - 1)
    shape = group.shape

    def row(who: slice, sign: float) -> NDArray[np.float64]:
        out = np.zeros(shape)
        for a, s in ((0, 1.0), (1, -1.0)):
            out[who, a] = sign * s * group[who, a] / group[who, a].sum()
        return out.ravel()

    rows = [row(slice(None), sign) for sign in (1, -1)]
    right = [budget] * 2
    if local is not None:
        rows += [row(slice(k, k + 1), sign) for k in range(clients) for sign in (1, -1)]
        right += [local] * (2 * clients)
    found = linprog(-gain.ravel(), A_ub=np.array(rows), b_ub=right, bounds=(0, 1))
    return float(-found.fun)


def expected_gain(rule: Rule, scores: Scores) -> float:
    group = scores.counts[:, 1:].sum(2)
    accept = rule.accept()
    accept = accept[:-1] if len(accept) > 1 else accept
    return float((group * accept * (2 * centres(BINS) - 1)).sum())


@pytest.mark.parametrize("local", [None, 0.03])
@pytest.mark.parametrize("budget", [0.1, 0.02, 0.0])
def test_logofair_and_fedfact_reach_the_optimum_of_the_program(
    budget: float, local: float | None
) -> None:
    """Three ways to one optimum: the program over bins, over thresholds, and its smoothed dual.

    FedFACT's smoothing costs at most log(2) / sharpness for each example.
    """
    scores = drawn(1, [(400, 300), (200, 500), (100, 150)])
    best = least_error_program(scores, budget, local)
    exact = fit("logofair", scores, budget=budget, local_budget=local, calibrate="none")
    assert expected_gain(exact, scores) == pytest.approx(best, abs=1e-4)
    smooth = fit("fedfact", scores, budget=budget, local_budget=local, sharpness=2000.0)
    size = float(scores.sizes.sum())
    assert best - size * np.log(2) / 2000 - 0.1 <= expected_gain(smooth, scores) <= best + 0.1
    for rule in (exact, smooth):
        assert gap(rule, scores, "dp") <= budget + 1e-3
        inside = difference(rule.tally(scores), NOTIONS["dp"]).max()
        assert local is None or inside <= local + 1e-3


def test_two_class_fedfact_is_logofair() -> None:
    """Identity: the same positive rate in every client and group, up to one bin of scores."""
    scores = drawn(2, [(4000, 3000), (2000, 5000)])
    for options in ({"budget": 0.02}, {"budget": 0.05, "local_budget": 0.02}):
        one = fit("logofair", scores, calibrate="none", **options).counts(scores)
        two = fit("fedfact", scores, sharpness=2000.0, **options).counts(scores)
        rates = [at[:, 1:, :, 1].sum(-1) / at[:, 1:].sum((-2, -1)) for at in (one, two)]
        np.testing.assert_allclose(rates[0], rates[1], atol=0.006)


def duan_program(counts: NDArray[np.float64], budget: float, local: float) -> float:
    """The paper's program in the recalls x, with two classes; the correct decisions."""
    clients = len(counts)
    label = counts.sum(-1)  # [k, a, y]
    recall = np.diagonal(counts, axis1=-2, axis2=-1) / label
    shape, rows, right = (clients, 2, 2), [], []

    def add(entries: dict[tuple[int, int, int], float], most: float) -> None:
        at = np.zeros(shape)
        for where, value in entries.items():
            at[where] = value
        rows.append(at.ravel())
        right.append(most)

    for y in (0, 1):
        total = label[..., y].sum(0)
        for sign in (1, -1):
            each = {
                (k, a, y): sign * (1 - 2 * a) * label[k, a, y] / total[a]
                for k in range(clients)
                for a in (0, 1)
            }
            add(each, budget)
            for k in range(clients):
                add({(k, 0, y): sign, (k, 1, y): -sign}, local)
    for k, a in itertools.product(range(clients), (0, 1)):
        t0, t1 = recall[k, a]
        add({(k, a, 0): -1, (k, a, 1): -1}, -1)
        add({(k, a, 0): 1 - t1, (k, a, 1): t0}, t0)
        add({(k, a, 0): t1, (k, a, 1): 1 - t0}, t1)
    found = linprog(-label.ravel(), A_ub=np.array(rows), b_ub=right, bounds=(0, 1))
    return float(-found.fun)


@pytest.mark.parametrize(("budget", "local"), [(0.5, 0.5), (0.05, 0.1), (0.001, 0.001), (0.0, 0.0)])
def test_fair_lp_reaches_the_optimum_of_the_papers_program(budget: float, local: float) -> None:
    rng = np.random.default_rng(4)
    label = rng.integers(40, 200, (3, 2, 2))
    recall = rng.uniform(0.55, 0.95, label.shape)
    right = np.round(label * recall).astype(np.int64)
    counts = np.zeros((3, 3, 2, 2), dtype=np.int64)
    for y in (0, 1):
        counts[:, 1:, y, y], counts[:, 1:, y, 1 - y] = right[..., y], (label - right)[..., y]
    counts[:, 0] = counts[:, 1:].sum(1)
    best = duan_program(counts[:, 1:].astype(np.float64), budget, local)
    method = FairLP(notion="equalised_odds", budget=budget, local_budget=local)
    rule = method.fit_counts(Counts(counts, np.zeros((3, 3, 2)), SEX))
    found = rule.mixed(counts[:, 1:].astype(np.float64))
    assert float(np.diagonal(found, axis1=-2, axis2=-1).sum()) == pytest.approx(best, abs=1e-4)
    tally = expected_tally(np.concatenate([found.sum(1, keepdims=True), found], 1))
    assert float(difference(pooled(tally), NOTIONS["equalised_odds"])) <= budget + 1e-7
    assert float(difference(tally, NOTIONS["equalised_odds"]).max()) <= local + 1e-7


def three_classes(seed: int) -> tuple[NDArray, NDArray, NDArray]:
    """Probabilities [n, 3], clients [n] and groups [n] that differ in their probabilities."""
    rng = np.random.default_rng(seed)
    client, group = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    alpha = np.array([[1.0, 2.0, 1.5], [2.0, 1.0, 1.5]])[group]
    eta = np.stack([rng.dirichlet(at) for at in alpha])
    return eta, client, group


def numpy_ask(eta: NDArray, client: NDArray, group: NDArray):
    def ask(gain: NDArray, sharpness: float) -> Answers:
        each = sharpness * np.einsum("iy,iyc->ic", eta, gain[client, group])
        top = np.logaddexp.reduce(each, -1)
        value, counts = np.zeros(2), np.zeros((2, 2, 3, 3))
        np.add.at(value, client, top / sharpness)
        pairs = eta[:, :, None] * np.exp(each - top[:, None])[:, None]
        np.add.at(counts, (client, group), pairs)
        return Answers(value, counts)

    return ask


@pytest.mark.parametrize("local", [None, 0.1])
def test_fedfact_of_three_classes_reaches_the_optimum_of_its_program(local: float | None) -> None:
    eta, client, group = three_classes(0)
    size = len(eta)
    rows, right = [], []
    for who, most in [(np.ones(size, bool), 0.05)] + (
        [] if local is None else [(client == k, local) for k in (0, 1)]
    ):
        for c, sign in itertools.product(range(3), (1, -1)):
            at = np.zeros((size, 3))
            for a, s in ((0, 1), (1, -1)):
                own = who & (group == a)
                at[own, c] = sign * s / own.sum()
            rows.append(at.ravel())
            right.append(most)
    once = np.kron(np.eye(size), np.ones(3))
    exact = linprog(
        -eta.ravel(), A_ub=np.array(rows), b_ub=right, A_eq=once, b_eq=np.ones(size), bounds=(0, 1)
    )
    ask = numpy_ask(eta, client, group)
    method = FedFACT(budget=0.05, local_budget=local, sharpness=1000.0)
    rule = method.fit_answers(ask, 2, SEX, 3)
    found = ask(rule.parts["gain"][:2].numpy(), 1000.0).counts
    gained = float(np.einsum("kayy->", found))
    assert gained == pytest.approx(-exact.fun, abs=size * np.log(3) / 1000 + 0.05)
    share = found.sum((0, 2)) / found.sum((0, 2, 3))[:, None]
    assert np.abs(share[0] - share[1]).max() <= 0.051
    for k in (0, 1) if local is not None else ():
        share = found[k].sum(1) / found[k].sum((1, 2))[:, None]
        assert np.abs(share[0] - share[1]).max() <= local + 1e-3


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("notion", ["dp", "eo", "equalised_odds"])
def test_the_gap_on_the_fitted_examples_is_within_the_budget(name: str, notion: str) -> None:
    """Exactly for the programs; FedFACT's rates given a label are those that scores predict."""
    scores = drawn(5, [(3000, 2000), (1000, 4000), (500, 400)])
    before = 0.0
    for budget in (0.2, 0.05, 0.0):
        rule = fit(name, scores, notion=notion, budget=budget)
        slack = 1e-6 if name != "fedfact" else 1e-3 if notion == "dp" else 0.03
        assert gap(rule, scores, notion) <= budget + slack
        if name in ("fair_lp", "thresholds"):  # the others weigh errors by probabilities
            assert error(rule, scores) >= before - 1e-9
        before = error(rule, scores)


@pytest.mark.parametrize("name", ALL)
def test_without_a_budget_nothing_changes(name: str) -> None:
    """Decisions at a half: exactly on scores as they are; the best threshold is near with many."""
    scores = drawn(6, [(30_000, 20_000), (20_000, 30_000)])
    own = {"calibrate": "none"} if name == "logofair" else {}
    rule = fit(name, scores, budget=1.0, **own)
    if name == "thresholds":
        assert (rule.parts["edge"] - 500).abs().max() < 40
    else:
        half = np.broadcast_to(np.arange(BINS) >= 500, rule.accept().shape)
        # FedFACT draws next to the boundary
        away = np.abs(centres(BINS) - 0.5) > (0.01 if name == "fedfact" else 0)
        np.testing.assert_allclose(rule.accept()[..., away], half[..., away], atol=1e-3)


@pytest.mark.parametrize("name", ["thresholds", "logofair", "fedfact", "fair_lp"])
def test_the_gap_on_other_examples_is_near_the_budget(name: str) -> None:
    sizes = [(20_000, 20_000), (20_000, 20_000)]
    scores, other = drawn(7, sizes), drawn(8, sizes)
    rule = fit(name, scores, notion="dp", budget=0.0)
    plain = fit(name, scores, notion="dp", budget=1.0)
    assert gap(plain, other, "dp") > 0.12
    assert gap(rule, other, "dp") < 0.015
    assert error(rule, other) < error(plain, other) + 0.04


def test_a_client_without_a_group_uses_the_rule_of_a_new_client() -> None:
    scores = drawn(9, [(500, 400), (300, 0), (0, 0)])
    for name in ("logofair", "fair_lp", "fedfact"):
        rule = fit(name, scores, notion="dp", budget=0.02, local_budget=0.05)
        accept = rule.accept()
        np.testing.assert_allclose(accept[2], accept[3])
        np.testing.assert_allclose(accept[1, 1], accept[3, 1])
        assert gap(rule, scores, "dp") <= 0.021


def test_three_groups_are_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((2, 4, 2, BINS), dtype=np.int64)
    for k, a in itertools.product(range(2), range(3)):
        true = rng.beta(1 + a, 3, 800)
        label, place = (rng.random(800) < true).astype(int), (true * BINS).astype(int)
        np.add.at(counts, (k, 1 + a, label, place), 1)
    counts[:, 0] = counts[:, 1:].sum(1)
    scores = Scores(counts, (Attribute("race", ("a", "b", "c")),))
    for name in ALL:
        plain = gap(fit(name, scores, notion="dp", budget=1.0), scores, "dp")
        assert gap(fit(name, scores, notion="dp", budget=0.03), scores, "dp") <= 0.031 < plain


def test_calibration_corrects_scores_and_leaves_few_alone() -> None:
    """Scores that are .7 of the true probability; one example alone changes little."""
    group = drawn(10, [(60_000, 60_000)], tilt=0.7).counts[0, 1:].astype(np.float64)
    found = calibrated(group)
    at = np.arange(100, 600)
    np.testing.assert_allclose(found[:, at], np.tile(centres(BINS)[at] / 0.7, (2, 1)), atol=0.06)
    assert (np.diff(found, axis=-1) >= 0).all()
    one = np.zeros((1, 2, BINS))
    one[0, 0, 900] = 1
    assert np.abs(calibrated(one) - centres(BINS)).max() < 0.15
    np.testing.assert_allclose(calibrated(np.zeros((1, 2, BINS)))[0], centres(BINS), atol=1e-12)


def test_calibration_lowers_the_error_of_wrong_scores() -> None:
    sizes = [(20_000, 20_000)]
    scores, other = drawn(11, sizes, tilt=0.7), drawn(12, sizes, tilt=0.7)
    with_it, without = (
        fit("logofair", scores, budget=0.05, calibrate=how) for how in ("beta", "none")
    )
    assert error(with_it, other) < error(without, other) - 0.01
    assert gap(with_it, other, "dp") < 0.065


def test_fair_lp_of_three_classes_equalises_recalls() -> None:
    rng = np.random.default_rng(1)
    counts = np.zeros((2, 3, 3, 3), dtype=np.int64)
    counts[:, 1:] = rng.integers(5, 30, (2, 2, 3, 3)) + 60 * np.eye(3, dtype=np.int64)
    counts[:, 0] = counts[:, 1:].sum(1)
    method = make("fair_lp", {"notion": "eo", "budget": 0.02, "local_budget": 0.05})
    assert isinstance(method, FairLP)
    rule = method.fit_counts(Counts(counts, np.zeros((2, 3, 3)), SEX))
    assert isinstance(rule, Mixing)
    found = rule.mixed(counts[:, 1:].astype(np.float64))
    np.testing.assert_allclose(found.sum(-1), counts[:, 1:].sum(-1))
    recall = np.diagonal(found.sum(0), axis1=-2, axis2=-1) / found.sum(0).sum(-1)
    assert np.abs(recall[0] - recall[1]).max() <= 0.02 + 1e-7
    own = np.diagonal(found, axis1=-2, axis2=-1) / found.sum(-1)
    assert np.abs(own[:, 0] - own[:, 1]).max() <= 0.05 + 1e-7
