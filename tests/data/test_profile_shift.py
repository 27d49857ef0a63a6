"""Shifts: false alarms as rare as said where there is none, real ones found and told apart."""

import numpy as np
import pytest
from profile_data import draw, federation
from scipy import stats

from isonomy.data.profile import outlier_tests, shift
from isonomy.data.profile.statistics import collect

CLIENTS = 10


def clients(rng, kind, rows=150, share=None):
    """Clients that differ in size and, unless `share` is given, in their shares of labels."""
    sizes = rng.integers(rows // 2, 2 * rows, CLIENTS)
    shares = rng.beta(2, 2, CLIENTS) if share is None else np.full(CLIENTS, share)
    drawn = [draw(rng, n, p, kind) for n, p in zip(sizes, shares, strict=True)]
    return [x for x, _ in drawn], [y for _, y in drawn]


@pytest.mark.parametrize("kind", ["normal", "skew", "rare"])
@pytest.mark.parametrize("share", [0.3, None])
def test_false_alarms(monkeypatch, kind, share):
    """Of 120 federations without shift of features, with or without label shift, at 5 %.

    14 alarms or more have a chance of 0.3 % where the level holds.
    """
    monkeypatch.setattr(outlier_tests, "ALPHA", 0.05)
    monkeypatch.setattr(outlier_tests, "LEAST_EFFECT", 0.0)
    rng = np.random.default_rng(3)
    alarms = np.zeros(4)
    for _ in range(120):
        one = collect(federation(*clients(rng, kind, share=share)))
        given, related = shift.moved_given_label(one), shift.related(one)
        found = (given.findings, given.p <= 0.05, related.findings, related.p <= 0.05)
        alarms += [bool(each) for each in found]
    assert alarms.max() < 14
    if kind == "normal":  # and the level is used, not only kept
        assert alarms.sum() >= 8


def test_label_shift_alone_moves_means_but_not_given_the_label():
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for share in np.linspace(0.05, 0.95, CLIENTS):
        x, y = draw(rng, 600, share, "normal")
        xs.append(x)
        ys.append(y)
    one = collect(federation(xs, ys))
    assert shift.moved(one).spread > 0.1
    assert shift.moved(one).p < 1e-6
    assert not shift.moved_given_label(one).findings
    assert shift.moved_given_label(one).spread == 0
    assert not shift.related(one).findings
    assert shift.related(one).spread == 0


def test_offsets_that_go_with_labels_are_no_change_of_relation(monkeypatch):
    """Each client adds its own offset, larger where label 1 is common: pooled rows mislead."""
    monkeypatch.setattr(outlier_tests, "LEAST_EFFECT", 0.0)
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(30):
        xs, ys = clients(rng, "normal")
        xs = [
            x + 3 * y.mean() + rng.standard_normal(x.shape[1]) for x, y in zip(xs, ys, strict=True)
        ]
        one = collect(federation(xs, ys))
        assert len(shift.moved_given_label(one).findings) >= CLIENTS // 2
        alarms += bool(shift.related(one).findings)
    assert alarms <= 2  # at 1 %


def test_a_client_that_varies_more_is_no_alarm(monkeypatch):
    monkeypatch.setattr(outlier_tests, "LEAST_EFFECT", 0.0)
    monkeypatch.setattr(outlier_tests, "ALPHA", 0.05)
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(60):
        xs, ys = clients(rng, "normal")
        xs[4] = 4 * xs[4] - 1.5 * ys[4][:, None]  # the same class means but for an offset
        alarms += bool(shift.related(collect(federation(xs, ys))).findings)
    assert alarms <= 8


@pytest.mark.parametrize("seed", range(5))
def test_flipped_labels_are_found(seed):
    rng = np.random.default_rng(seed)
    xs, ys = clients(rng, "normal", 300, share=0.4)
    ys[3] = 1 - ys[3]
    found = shift.related(collect(federation(xs, ys)))
    assert [one.client for one in found.findings] == [3]
    one = found.findings[0]
    assert one.reversed
    assert one.effect < -0.5
    assert one.own < 0 < one.others
    assert found.spread > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_turned_features_are_found(seed):
    rng = np.random.default_rng(seed)
    xs, ys = [], []
    for _ in range(CLIENTS):
        y = rng.integers(0, 2, 400)
        xs.append(rng.standard_normal((400, 2)) + np.outer(y, [1.0, 0.0]))
        ys.append(y)
    xs[7] = xs[7] @ np.array([[0.0, 1.0], [-1.0, 0.0]])  # by ninety degrees
    found = shift.related(collect(federation(xs, ys)))
    assert [one.client for one in found.findings] == [7]
    assert found.effects[7] == pytest.approx(1.0, abs=0.5)


def test_permuted_classes_are_found_among_many():
    rng = np.random.default_rng(0)
    means = rng.standard_normal((6, 5))
    xs, ys = [], []
    for k in range(CLIENTS):
        y = rng.choice(6, 600, p=rng.dirichlet(np.full(6, 0.7)))
        xs.append(rng.standard_normal((600, 5)) + means[y])
        ys.append((y + 1) % 6 if k == 3 else y)
    found = shift.related(collect(federation(xs, ys, classes=6)))
    assert [one.client for one in found.findings] == [3]
    assert found.findings[0].labels is not None


def test_two_camps_have_no_majority():
    rng = np.random.default_rng(0)
    xs, ys = clients(rng, "normal", 400, share=0.5)
    ys = [1 - y if k % 2 else y for k, y in enumerate(ys)]
    found = shift.related(collect(federation(xs, ys)))
    assert len(found.findings) == CLIENTS


def test_an_offset_is_found_and_is_no_change_of_relation():
    rng = np.random.default_rng(0)
    xs, ys = clients(rng, "normal", 300)
    xs[5][:, 2] += 0.8
    one = collect(federation(xs, ys))
    found = shift.moved_given_label(one)
    assert [(each.client, each.column) for each in found.findings] == [(5, 2)]
    assert found.findings[0].effect == pytest.approx(0.8, abs=0.2)
    assert not shift.related(one).findings


def test_many_small_clients_are_judged_together():
    """No client of 40 rows can be named, but that they differ is plain, and by how much."""
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for _ in range(300):
        y = np.arange(40) % 2
        slope = 1 + 0.5 * rng.standard_normal()
        xs.append(rng.standard_normal((40, 3)) + np.outer(y, [slope, 1, 1]))
        ys.append(y)
    found = shift.related(collect(federation(xs, ys)))
    assert found.p < 1e-6
    assert found.column == 0
    assert found.spread == pytest.approx(0.5, abs=0.1)


def regression(rng, mode):
    xs, ys = [], []
    for k in range(CLIENTS):
        x = rng.standard_normal((1200, 4))
        slope = np.full(4, 0.4)
        if mode == "slope" and k == 2:
            slope = -slope
        if mode == "features":
            x = x * rng.uniform(0.5, 2) + rng.standard_normal(4)
        y = x @ slope + 0.5 * rng.standard_normal(1200)
        keep = np.argsort(-y)[:300] if mode == "targets" and k < 4 else np.arange(300)
        xs.append(x[keep])
        ys.append(y[keep])
    return federation(xs, ys, classes=0)


@pytest.mark.parametrize("mode", ["none", "features", "targets"])
def test_regression_false_alarms(mode):
    """Other features, or targets picked by their size, are no other relation."""
    rng = np.random.default_rng(0)
    assert not [
        s for _ in range(20) if (s := shift.related(collect(regression(rng, mode))).findings)
    ]


def test_regression_slopes_are_found():
    rng = np.random.default_rng(0)
    found = shift.related(collect(regression(rng, "slope")))
    assert [one.client for one in found.findings] == [2]
    assert found.findings[0].reversed


def test_tails_are_the_normal_and_gamma_ones():
    z = np.array([2.0, 3.0, 4.0])
    one, none = np.ones(3), np.zeros(3)
    assert outlier_tests.tail(z, one, none, none) == pytest.approx(2 * stats.norm.sf(z), rel=1e-4)
    lean = outlier_tests.tail(z, one, 0.5 * one, none)
    assert lean == pytest.approx(2 * stats.pearson3.sf(z, 0.5), rel=1e-6)
    heavy = outlier_tests.tail(z, one, none, one)
    freedom = 10
    scale = np.sqrt((freedom - 2) / freedom)
    assert heavy == pytest.approx(2 * stats.t.sf(z, freedom, scale=scale), rel=1e-6)
    assert (outlier_tests.tail(z, one, 2 * one, none) == 1).all()


def test_one_client_or_one_label_is_nothing_to_compare():
    rng = np.random.default_rng(0)
    x, y = draw(rng, 100, 0.5, "normal")
    alone = collect(federation([x], [y]))
    for asked in (shift.moved, shift.moved_given_label, shift.related):
        assert (asked(alone).spread, asked(alone).p, asked(alone).findings) == (0, 1, ())
    apart = collect(federation([x, x + 1], [np.zeros(100), np.ones(100)]))
    assert not shift.related(apart).tested.any()


def test_a_constant_column_is_no_trouble():
    rng = np.random.default_rng(0)
    xs, ys = clients(rng, "normal", 200, share=0.5)
    xs = [np.column_stack([x, np.full(len(x), 1e6)]) for x in xs]
    one = collect(federation(xs, ys))
    assert not shift.moved_given_label(one).findings
    assert not shift.related(one).findings
    xs = [np.column_stack([x, np.full(len(x), k)]) for k, x in enumerate(xs)]
    found = shift.moved_given_label(collect(federation(xs, ys)))
    assert {each.column for each in found.findings} == {xs[0].shape[1] - 1}
    assert max(abs(each.effect) for each in found.findings) < 10
