"""Preparation of tables with noise: sensitivities, noise, thresholds, what is asked, accounting."""

from __future__ import annotations

import json
import math
from typing import Any

import dp_accounting
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import isonomy
from isonomy import api
from isonomy.config.schema import parse
from isonomy.data.arrow_values import from_arrow
from isonomy.data.tables import phases, private_phases
from isonomy.data.tables.columns import Table, column
from isonomy.data.tables.private_fit import Guarded, range_of
from isonomy.data.tables.private_phases import EDGES
from isonomy.errors import ConfigError
from isonomy.privacy.noise import Key
from isonomy.privacy.preprocessing import (
    MOST_VALUES,
    NoisyPreparation,
    bounded_values,
    threshold,
    whole_multiplier,
)
from isonomy.runs.build import build
from isonomy.runs.listener import Listener
from privacy.private_tables import tables

NUMBER = st.one_of(
    st.none(), st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e300, -1e300, math.inf, 5e-324])
)
ROW = st.tuples(NUMBER, NUMBER, st.sampled_from(["a", "b", "c", None]), st.text("xyz", max_size=2))
RANGES = {"x": [-3.0, 10.0], "z": [0.0, 1.0]}


def client(rows: list[Any]) -> phases.Client:
    names = ("x", "z", "c", "d")
    kinds = (pa.float64(), pa.float64(), pa.string(), pa.string())
    columns = {
        name: column(from_arrow(pa.array([r[i] for r in rows], kind)), ("",))
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    kept = np.zeros(len(rows), dtype=np.int8)
    return phases.Client(0, "one", Table(columns, len(rows)), kept)


def vector(level: str, rows: list[Any], which: str) -> dict[Any, float]:
    """What a client replies, as one vector."""
    message: dict[str, Any] = {"level": level}
    if which == "values":
        message["columns"] = ["c", "d"]
        held = private_phases.values_held(message, client(rows))[0]["values"]
        return {(name, value): n for name, some in held.items() for value, n in some.items()}
    if which == "histograms":
        found = private_phases.histograms(message | {"columns": ["x", "z"]}, client(rows))[0]
    else:
        found = private_phases.moments(message | {"ranges": RANGES}, client(rows))[0]
    return dict(enumerate(found["vector"]))


@pytest.mark.parametrize("which", ["values", "histograms", "moments"])
@given(rows=st.lists(ROW, min_size=2, max_size=8), at=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_one_row_changes_a_reply_by_one_at_most(which, rows, at):
    less = rows[: at % len(rows)] + rows[at % len(rows) + 1 :]
    one, other = vector("example", rows, which), vector("example", less, which)
    change = [one.get(key, 0.0) - other.get(key, 0.0) for key in {*one, *other}]
    assert math.sqrt(sum(v * v for v in change)) <= 1 + 1e-9


@pytest.mark.parametrize("which", ["values", "histograms", "moments"])
@given(rows=st.lists(ROW, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_client_replies_a_vector_of_norm_one_at_most(which, rows):
    assert math.sqrt(sum(v * v for v in vector("client", rows, which).values())) <= 1 + 1e-9


def test_a_client_that_replies_more_is_shortened():
    made = NoisyPreparation("client", 1e-9, 1e-5, Key.of_seed(0))
    made.plan(1, selects=False)
    total, _ = made.total("x", np.array([[30.0, 40.0], [math.nan, 1.0]]))
    np.testing.assert_allclose(total, [0.6, 0.8], atol=1e-5)
    assert private_phases.MOST == MOST_VALUES
    greedy = {("a", str(i)): 1e9 for i in range(3 * MOST_VALUES)} | {("b", ""): 5.0}
    held = bounded_values(greedy, 2)
    assert len(held) == MOST_VALUES + 1
    assert math.sqrt(sum(v * v for v in held.values())) == pytest.approx(1.0)


@pytest.mark.parametrize(("level", "times"), [("client", 1.0), ("example", math.sqrt(5))])
def test_noise_has_the_stated_deviation(level, times):
    made = NoisyPreparation(level, 3.0, 1e-5, Key.of_seed(1))
    made.plan(2, selects=False)
    total, deviation = made.total("sums", np.zeros((5, 20_000)))
    assert deviation == pytest.approx(3.0 * math.sqrt(2) * times)
    assert total.std() == pytest.approx(deviation, rel=0.02)
    other, _ = made.total("other sums", np.zeros((5, 20_000)))
    assert abs(np.corrcoef(total, other)[0, 1]) < 0.03
    assert [e["multiplier"] for e in made.entries] == [3.0 * math.sqrt(2)] * 2


@pytest.mark.parametrize("level", ["client", "example"])
def test_a_value_of_one_client_or_row_is_shown_with_the_stated_probability(level):
    """With a large probability, so that it can be counted; two columns, values of their own."""
    many = 5 if level == "client" else 1
    each = 1 / math.sqrt(2 * many)
    held = [{(c, f"own {i}"): each for c in "ab" for i in range(many)}, {}]
    shown, draws, p = 0, 1500, 0.2
    for seed in range(draws):
        made = NoisyPreparation(level, 2.0, 10 * p, Key.of_seed(seed))
        made.plan(1, selects=True)
        shown += bool(made.selected("values", held, 2))
    assert shown / draws <= p + 3 * math.sqrt(p * (1 - p) / draws)
    assert shown > 0


def test_thresholds_are_those_of_the_normal_distribution():
    small = 1e-6 / (1 + 1e-6)
    assert threshold("example", 1, 3.0, 1e-6) == pytest.approx(1 + 3 * norm.isf(small))
    most = [1 / math.sqrt(m) + 3 * norm.isf(small / m) for m in range(1, MOST_VALUES + 1)]
    assert threshold("client", 1, 3.0, 1e-6) == pytest.approx(max(most))


def test_the_split_of_a_row_does_not_depend_on_its_content():
    message = {"split": "", "seed": 3, "fractions": [0.6, 0.2, 0.2]}
    one, other = client([(1.0, 2.0, "a", "x")] * 50), client([(9.0, None, None, "y")] * 50)
    first, second = (private_phases.divide(message, c)[1] for c in (one, other))
    assert first.tolist() == second.tolist()
    assert np.bincount(first).tolist() == [30, 10, 10]


def test_a_question_that_is_not_counted_is_caught():
    asked = Guarded(lambda phase, message: [{}])
    asked(phases.look, {})
    for phase in (phases.survey, phases.span, phases.values, private_phases.moments):
        with pytest.raises(RuntimeError, match="without noise"):
            asked(phase, {})


# --- runs -----------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "model": {"name": "logistic"},
    "rounds": 2,
    "local": {"steps": 2, "batch": 64},
    "checkpoint": {"every": 1},
    "privacy": {"level": "example", "epsilon": 4.0, "clip": 1.0, "seed": 0, "batches": "passes"},
}


def data(**options: Any) -> Any:
    frames = {name: pd.DataFrame(table) for name, table in tables().items()}
    return isonomy.federation(frames, label="ill", positive="yes", protected=["sex"], **options)


def config(**privacy: Any) -> Any:
    return parse({**BASE, "privacy": BASE["privacy"] | privacy})


def prepared(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.config["privacy"]["prepared"])
    return found


def test_a_run_fits_its_preprocessing_with_noise_and_counts_it():
    record = api.run(config(), data=data())
    ledger, made = record.facts["privacy"], prepared(record)
    assert ledger["not_covered"].keys() == {"seed"}
    assert 3.9 < ledger["epsilon"] <= 4.0
    phases_asked = [one["phase"] for one in ledger["releases"]]
    assert phases_asked[:3] == [
        "preprocessing:values_held",
        "preprocessing:histograms",
        "preprocessing:moments",
    ]
    assert phases_asked[-1] == "evaluation:test"
    job = next(e for e in made["preprocessing"]["encoders"] if e["name"] == "job")
    assert job["levels"] == ["clerk", "driver", "nurse"]  # no astronauts
    age = next(e for e in made["preprocessing"]["encoders"] if e["name"] == "age")
    assert age["within"] == [16.0, 128.0]
    assert age["shift"] == pytest.approx(49, abs=5)
    assert age["scale"] == pytest.approx(18, abs=5)
    income = next(e for e in made["preprocessing"]["encoders"] if e["name"] == "income")
    assert income["within"][1] < 1e6  # an outlier of one client does not show


def test_noise_alone_does_not_extend_a_range():
    """4,000 columns of 163 cells; at 4 standard deviations about 20 of them had a false cell."""
    stream, cells = np.random.default_rng(0), len(EDGES) - 1
    first, last = cells // 2, cells // 2 + 3
    for _ in range(4000):
        drawn = stream.normal(size=cells) * 10
        drawn[first : last + 1] += 500
        assert range_of(drawn, 10.0) == (EDGES[first], EDGES[last + 1])


def test_tables_after_tensors_are_fitted_with_noise_too():
    """Both are data in memory; those of tensors have nothing to fit."""
    x, y = np.random.default_rng(0).normal(size=(400, 2)), [0, 1] * 200
    tensors = isonomy.Federation.from_tensors(x, y, [0, 1, 2, 3] * 100)
    api.run(config(), data=tensors)
    record = api.run(config(), data=data())
    assert record.facts["privacy"]["releases"][0]["phase"] == "preprocessing:values_held"


@pytest.mark.parametrize("level", ["client", "example"])
def test_epsilon_is_that_of_dp_accounting_for_everything(level):
    """Gaussian releases compose exactly: the ledger agrees with the library's own composition."""
    values = ["no", "yes"]
    known = {"ill": values, "sex": ["f", "m"], "job": ["clerk", "driver", "nurse"]}
    options = {"level": level, "clip": 0.5, "evaluate": "every", "categories": known}
    record = api.run(config(**options), data=data())
    ledger = record.facts["privacy"]
    z = [one["multiplier"] for one in ledger["releases"]]
    kinds = [one["phase"].partition(":")[0] for one in ledger["releases"]]
    assert kinds == ["preprocessing"] * 2 + ["local"] * 2 + ["evaluation"]
    counted = z if level == "client" else z[:-1]  # test examples are not training examples
    accountant = dp_accounting.pld.PLDAccountant()
    for one in counted:
        accountant.compose(dp_accounting.GaussianDpEvent(one))
    spent = accountant.get_epsilon(1e-5)
    found = ledger["epsilon"] if level == "client" else ledger["by_split"]["train"]
    assert found == pytest.approx(spent, rel=2e-3)
    assert ledger["epsilon"] <= 4.0
    if level == "example":
        alone = dp_accounting.get_epsilon_gaussian(z[-1], 1e-5)
        assert ledger["by_split"]["test"] == pytest.approx(alone, rel=1e-4)


def test_what_is_known_is_not_asked():
    known = {"ill": ["no", "yes"], "sex": ["f", "m"], "job": ["clerk", "nurse"]}
    ranges = {"age": [20.0, 60.0], "income": [0.0, 10_000.0]}
    record = api.run(config(categories=known, ranges=ranges), data=data())
    asked = [one["phase"] for one in record.facts["privacy"]["releases"]]
    assert not any(phase.startswith("preprocessing") for phase in asked)
    made = {e["name"]: e for e in prepared(record)["preprocessing"]["encoders"]}
    assert (made["age"]["shift"], made["age"]["scale"], made["age"]["fill"]) == (40, 20, 40)
    assert made["job"]["levels"] == ["clerk", "nurse"]
    x = build(parse(record.config), lambda _: None).federation.x
    assert float(x[:, 0].abs().max()) <= 1.0  # clipped to the range


def test_a_resumed_run_has_the_same_preprocessing_and_ledger(tmp_path):
    class Stop(Listener):
        def round(self, done: int, rounds: int, metrics: Any) -> None:
            if done == 1:
                raise KeyboardInterrupt

    whole, cut, given = tmp_path / "whole", tmp_path / "cut", data()
    made = config(evaluate="every", seed=None)
    with pytest.raises(KeyboardInterrupt):
        api.run(made, cut, data=given, listeners=[Stop()])
    fitted = (cut / "config.toml").read_bytes()
    done = api.resume(cut, data=given)
    assert (cut / "config.toml").read_bytes() == fitted
    first = api.run(config(evaluate="every"), whole, data=given)
    with pytest.raises(KeyboardInterrupt):
        api.run(config(evaluate="every"), cut, data=given, listeners=[Stop()], overwrite=True)
    api.resume(cut, data=given)
    for name in ("privacy.json", "rounds.jsonl", "summary.json", "config.toml"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()
    assert prepared(first) != prepared(done)  # with another key, other noise


@pytest.mark.parametrize(
    ("options", "roles", "text"),
    [
        ({"ranges": {"job": [0.0, 1.0]}}, {}, "is not a feature of numbers"),
        ({"ranges": {"age": [2.0, 1.0]}}, {}, "give low < high"),
        ({"categories": {"jobs": ["a"]}}, {}, "is not the label"),
        ({}, {"protected": ["age"], "bins": {"age": 3}}, "give edges"),
    ],
)
def test_what_cannot_be_fitted_is_refused(options, roles, text):
    frames = {name: pd.DataFrame(table) for name, table in tables(2, 60).items()}
    given = {"protected": ["sex"], **roles}
    with pytest.raises(ConfigError, match=text):
        api.run(config(**options), data=isonomy.federation(frames, label="ill", **given))


def test_missing_values_of_binned_groups_are_a_group_if_there_are_enough():
    frames = {name: pd.DataFrame(table) for name, table in tables().items()}
    for k, frame in enumerate(frames.values()):
        frame.loc[frame.index[: 300 if k else 3], "age"] = None
    given = isonomy.federation(frames, label="ill", protected=["age"], bins={"age": [40]})
    groups = prepared(api.run(config(evaluate="never"), data=given))["preprocessing"]["table"]
    assert groups["groups"][0]["levels"] == ["below 40", "40 and above", "missing"]
    few = {"site 0": frames["site 0"], "again": frames["site 0"]}
    given = isonomy.federation(few, label="ill", protected=["age"], bins={"age": [40]})
    record = api.run(config(evaluate="never"), data=given)
    groups = prepared(record)["preprocessing"]["table"]["groups"]
    assert groups[0]["levels"] == ["below 40", "40 and above"]
    sizes = build(parse(record.config), lambda _: None).federation.sizes("train").tolist()
    assert sum(sizes) < 840  # rows without an age are left out


def test_the_whole_budget_is_that_of_one_gaussian():
    z = whole_multiplier(config().privacy)
    assert dp_accounting.get_epsilon_gaussian(z, 0.9e-5) == pytest.approx(4.0, rel=5e-3)
