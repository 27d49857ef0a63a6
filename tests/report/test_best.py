"""Which values are marked as best: simulations of the rule, and who is never marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from report_records import plain

from isonomy.metrics.client import percentiles, resamples
from isonomy.report.tables import comparison
from isonomy.report.tables.best import Values, best, half_width, p_value
from isonomy.runs.record import Record

TRIALS = 1000


@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (3, 3), (5, 3), (8, 5)])
def test_without_a_difference_few_columns_have_a_mark(methods: int, seeds: int):
    """Methods share the effect of a seed (its split of the data) and differ by noise only."""
    draw = np.random.default_rng(methods * 100 + seeds)
    marks = 0
    for _ in range(TRIALS):
        at = 0.8 + draw.normal(0, 0.02, seeds) + draw.normal(0, 0.01, (methods, seeds))
        given = {i: Values(dict(enumerate(row.tolist())), {}) for i, row in enumerate(at)}
        marks += bool(best(given, "higher"))
    assert marks / TRIALS < 0.05 + 3 * (0.05 * 0.95 / TRIALS) ** 0.5


@pytest.mark.parametrize("clients", [8, 40])
def test_with_one_seed_intervals_over_clients_decide(clients: int):
    draw = np.random.default_rng(clients)
    index = np.concatenate(list(resamples(clients, 400, 0)))

    def values(at: np.ndarray) -> Values:
        ends = percentiles(at[index].mean(1), float(at.mean()), 0.95)
        return Values({0: float(at.mean())}, {0: ends})

    marks = 0
    for _ in range(300):
        at = draw.normal(0.8, 0.05, (2, clients))  # not even paired, which is the worst case
        marks += bool(best({i: values(row) for i, row in enumerate(at)}, "higher"))
    assert marks / 300 < 0.05
    far = [draw.normal(mean, 0.02, clients) for mean in (0.8, 0.7)]
    assert best({i: values(row) for i, row in enumerate(far)}, "higher") == {0}
    assert best({i: values(row) for i, row in enumerate(far)}, "lower") == {1}


def test_a_clear_difference_is_found():
    draw = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        shared = draw.normal(0, 0.02, 5)
        given = {
            i: Values(dict(enumerate((mean + shared + draw.normal(0, 0.005, 5)).tolist())), {})
            for i, mean in enumerate((0.70, 0.75, 0.80))
        }
        found += best(given, "higher") == {2}
    assert found > 190


def test_p_values_have_the_closed_forms_of_few_seeds():
    """With 3 differences P(|T| > t) = 1 - t / sqrt(2 + t^2), with 2 it is 1 - 2/pi atan(t)."""
    for at in ([0.1, 0.3, 0.2], [0.5, -0.1, 0.2], [1.0, 1.1], [-0.4, 0.1]):
        t = abs(np.mean(at)) / (np.std(at, ddof=1) / len(at) ** 0.5)
        exact = 1 - t / (2 + t * t) ** 0.5 if len(at) == 3 else 1 - 2 / np.pi * np.arctan(t)
        assert p_value(at) == pytest.approx(float(exact))


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_intervals_over_seeds_contain_the_mean_in_95_percent_of_cases(seeds: int):
    draw = np.random.default_rng(seeds).normal(0.8, 0.02, (TRIALS, seeds))
    inside = sum(abs(np.mean(at) - 0.8) <= half_width(at.tolist()) for at in draw)
    assert inside / TRIALS == pytest.approx(0.95, abs=3 * (0.05 * 0.95 / TRIALS) ** 0.5)
    low, high = scipy.stats.t.interval(
        0.95, seeds - 1, loc=np.mean(draw[0]), scale=scipy.stats.sem(draw[0])
    )
    assert half_width(draw[0].tolist()) == pytest.approx((high - low) / 2)


def test_without_intervals_one_seed_has_no_mark():
    assert best({0: Values({0: 0.9}, {}), 1: Values({0: 0.1}, {})}, "higher") == set()


def test_bytes_are_exact():
    given = {0: Values({0: 10.0}, {}), 1: Values({0: 11.0}, {})}
    assert best(given, "lower", exact=True) == {0}


def runs(label: str, accuracy: float, gap: float, only: str = "") -> list[Record]:
    """Three seeds of a method, with the constant prediction at an accuracy of 0.65."""
    out = []
    for seed in range(3):
        metrics = {
            "accuracy": accuracy + seed / 1000,
            "group.sex.demographic_parity": gap + (gap > 0) * seed / 1000,
        }
        fixed = {"class": "no", "metrics": {"accuracy": 0.65, "group.sex.demographic_parity": 0.0}}
        entry = {"round": 1, "metrics": metrics, "constant": fixed}
        entry |= {"only_class": only} if only else {}
        out.append(replace(plain(label, seed, **metrics), rounds=[entry]))
    return out


def test_a_model_below_the_constant_prediction_is_never_best():
    table = comparison([*runs("A", 0.80, 0.10), *runs("B", 0.75, 0.05), *runs("C", 0.58, 0.01)])
    names = [column.name for column in table.columns]
    gap, remark = names.index("group.sex.demographic_parity"), names.index("remark")
    assert [row[gap].best for row in table.rows] == [False, True, False, False]
    assert table.rows[2][remark].value == "less accurate than the constant prediction"
    last = dict(zip(names, table.rows[3], strict=True))
    assert last["method"].value == "constant prediction"
    assert (last["accuracy"].value, last["group.sex.demographic_parity"].value) == (0.65, 0.0)
    assert "never marked as best" in "\n".join(table.footnotes)


def test_a_model_that_predicts_one_class_is_named_and_not_best():
    records = [*runs("A", 0.8, 0.1), *runs("B", 0.7, 0.05), *runs("C", 0.65, 0.0, only="no")]
    table = comparison(records)
    names = [column.name for column in table.columns]
    gap = names.index("group.sex.demographic_parity")
    assert [row[gap].best for row in table.rows] == [False, True, False, False]
    assert "predicts 'no' for everyone" in str(table.rows[2][names.index("remark")].value)
    assert "C, seed 0, 1, 2: the model predicts 'no' for every example" in "\n".join(
        table.footnotes
    )


def test_a_dominated_method_is_marked():
    table = comparison([*runs("A", 0.8, 0.1), *runs("B", 0.78, 0.2), *runs("C", 0.7, 0.05)])
    at = [column.name for column in table.columns].index("remark")
    assert [row[at].value for row in table.rows[:3]] == ["", "worse than A in every column", ""]


def test_the_worst_attribute_is_in_the_table():
    records = [
        plain(
            label,
            **{
                "accuracy": 0.8,
                "group.male.demographic_parity": 0.0065,
                "group.race.demographic_parity": race,
                "group.race.demographic_parity:low": race - 0.01,
                "group.race.demographic_parity:high": race + 0.01,
            },
        )
        for label, race in (("A", 0.14), ("B", 0.05))
    ]
    table = comparison(records)
    (at,) = [i for i, c in enumerate(table.columns) if c.name == "group.*.demographic_parity"]
    assert [(row[at].value, row[at].note) for row in table.rows] == [(0.14, "race"), (0.05, "race")]
    assert (table.rows[0][at].low, table.rows[0][at].high) == pytest.approx((0.13, 0.15))
    assert "0.140 [0.130, 0.150] race" in table.text()
    assert table.columns[at].title == "demographic-parity gap of the worst attribute"
    assert "of one attribute, the worst of male, race" in table.columns[at].meaning
