"""Guesses at what columns are, rule by rule; whole tables are in test_tables_look.py."""

import numpy as np
import pytest

from isonomy.data.tables import guess as rules
from isonomy.data.tables import guess_columns, guess_label, name_hints
from isonomy.data.tables.column_profile import ColumnProfile

# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sex", "sex"),
        ("Gender", "sex"),
        ("Geschlecht", "sex"),
        ("Patientengeschlecht", "sex"),
        ("sexe", "sex"),
        ("is_female", "sex"),
        ("性别", "sex"),
        ("AGE", "age"),
        ("patientAge", "age"),
        ("Alter", "age"),
        ("Alter (Jahre)", "age"),
        ("year_of_birth", "age"),
        ("âge", "age"),
        ("ethnicity", "race"),
        ("race", "race"),
        ("Religion", "religion"),
        ("Nationalität", "nationality"),
        ("native-country", "nationality"),
        ("foreign_worker", "nationality"),
        ("disability", "disability"),
        ("Schwerbehinderung", "disability"),
        ("marital-status", "marital status"),
        ("MARRIAGE", "marital status"),
        ("Familienstand", "marital status"),
        ("état civil", "marital status"),
    ],
)
def test_protected_names(name, kind):
    assert [k for k, entry in name_hints.PROTECTED.items() if name_hints.called(name, entry)] == [
        kind
    ]


@pytest.mark.parametrize(
    "name", ["stage", "wage", "language", "average", "message", "embrace", "trace", "Essex", "bmi"]
)
def test_names_that_only_sound_so(name):
    assert not [k for k, entry in name_hints.PROTECTED.items() if name_hints.called(name, entry)]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("label", 100),
        ("target", 100),
        ("y", 100),
        ("Outcome", 100),
        ("class", 70),
        ("readmitted", 60),
        ("default.payment.next.month", 60),
        ("two_year_recid", 60),
        ("hospital_expire_flag", 60),
        ("loan_status", 60),
        ("status", 30),
        ("y1", 0),
        ("dependents", 0),
        ("pclass", 0),
    ],
)
def test_names_of_labels(name, number):
    assert name_hints.rank(name, name_hints.LABELS) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("client", 100),
        ("hospital", 80),
        ("Hospital_ID", 80),
        ("site", 80),
        ("bank_name", 80),
        ("Klinik", 80),
        ("user_id", 60),
        ("device", 60),
        ("state", 50),
        ("Bundesland", 50),
        ("treating_hospital", 30),
        ("time_in_hospital", 0),
        ("tumor_site", 0),
        ("admission_source", 0),
        ("blood_group", 0),
        ("native_country", 0),
        ("marital_state", 0),
    ],
)
def test_names_of_clients(name, number):
    assert guess_columns.client_rank(name) == number


# --- what a column is good for -------------------------------------------------------------------


def text(name, values, **more):
    """A column of words: counts by value, or a number of different words."""
    if isinstance(values, int):
        values = {f"{name} {i}": 1 for i in range(values)}
    held = sum(values.values())
    return ColumnProfile(
        name,
        "text",
        rows=more.pop("rows", held),
        held=held,
        distinct=len(values),
        distinct_share=len(values) / held,
        values=values,
        **more,
    )


def number(name, values, **more):
    """A column of numbers."""
    values = np.asarray(values, dtype=float)
    distinct, counts = np.unique(values, return_counts=True)
    shown = [str(int(v)) if v == int(v) else repr(float(v)) for v in distinct]
    return ColumnProfile(
        name,
        "number",
        rows=len(values),
        held=len(values),
        distinct=len(distinct),
        distinct_share=len(distinct) / len(values),
        values=dict(zip(shown[:1000], counts.tolist()[:1000], strict=True)),
        whole=bool((values == np.round(values)).all()),
        percentiles=tuple(np.percentile(values, range(101)).tolist()),
        **more,
    )


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (
            ColumnProfile("lab", "number", absent=("b", "c"), rows=9, held=9),
            "not in the table of b, c",
        ),
        (ColumnProfile("x", "empty", rows=100), "empty"),
        (ColumnProfile("x", "time", rows=100, held=100), "dates"),
        (text("x", 30, dated=True), "dates"),
        (ColumnProfile("x", "other", rows=100, held=100), "lists or bytes"),
        (text("x", {"a": 10, "b": 10}, names_client=True), "one value per file"),
        (text("x", {"a": 100}), "the same value everywhere"),
        (text("x", 100), "a different value in nearly every row"),
        (text("x", 60, length=80.0), "free text"),
        (number("x", range(100), numbers_rows=True), "numbers the rows"),
        (number("patient_nr", RNG.permutation(500) // 2), "an identifier"),
        (
            number("phone", RNG.permutation(900) + 1_000_000),
            "a different value in nearly every row",
        ),
        (text("surname", {f"n{i}": 3 for i in range(50)}), "identifies a person"),
        (text("x", {f"n{i}": 2 for i in range(1500)}), "more than 1,000 different texts"),
    ],
)
def test_columns_of_no_use(one, reason):
    assert guess_columns.unusable(one).startswith(reason)


@pytest.mark.parametrize(
    "one",
    [
        number("bmi", RNG.normal(27, 4, 400)),
        number("num_medications", RNG.integers(0, 90, 300)),
        number("patient_age", RNG.integers(18, 95, 300)),
        number("admission_type_id", RNG.integers(1, 9, 300)),
        number("salary", RNG.integers(20_000, 200_000, 400)),
        text("insurance", {"public": 60, "private": 40}),
        text("answer", {"yes": 20}, rows=100),  # no answer is an answer
        text("few rows", 5),
    ],
)
def test_columns_of_use(one):
    assert guess_columns.unusable(one) == ""


def test_the_split():
    part = text("part", {"Train": 70, "dev": 10, "TEST": 20})
    assert guess_columns.guess_split([text("a", {"train": 5, "b": 5}), part]) == "part"
    assert guess_columns.guess_split([text("vehicle", {"train": 50, "car": 50})]) == ""
    assert guess_columns.guess_split([text("part", {"train": 70, "test": 20}, rows=100)]) == ""
    assert guess_columns.guess_split([text("part", {"train": 70, "validation": 20})]) == ""


def test_the_client_column():
    state = text("state", {"BY": 50, "BE": 50})
    hospital = number("hospital_id", RNG.integers(0, 8, 400))
    stay = number("time_in_hospital", RNG.integers(1, 14, 400))
    found = guess_columns.rank_clients([state, stay, hospital])
    assert [one.name for one in found] == ["hospital_id", "state"]
    assert guess_columns.rank_clients([stay, text("hospital", {"a": 100})]) == []
    assert guess_columns.rank_clients([text("user", 80)]) == []  # a row each is no client
    holes = text("bank", {"a": 40, "b": 40}, rows=100)
    assert guess_columns.rank_clients([holes]) == []


def test_protected_columns():
    sex = text("sex", {"f": 50, "m": 50})
    age = number("age", RNG.integers(18, 90, 500))
    band = text("age_band", {"young": 50, "old": 50})
    origin = text("ethnicity", 41)
    car = number("vehicle_age", RNG.integers(0, 20, 500))
    chosen, bins, others = guess_columns.guess_protected([car, age, band, origin, sex])
    assert chosen == ("sex", "age")
    assert bins == {"age": (30, 60)}
    assert set(others) == {"age_band", "ethnicity"}
    assert "41 values" in others["ethnicity"]
    assert "about age" in others["age_band"]


def test_ages_in_few_stretches_are_not_cut():
    chosen, bins, _ = guess_columns.guess_protected([number("age_group", RNG.integers(1, 7, 300))])
    assert (chosen, bins) == (("age_group",), {})


def test_not_all_that_could_be_protected_is():
    two = {"a": 50, "b": 50}
    names = ["married", "disability", "religion", "race", "sex", "nationality"]
    chosen, _, others = guess_columns.guess_protected([text(name, two) for name in names])
    assert chosen == ("sex", "race", "religion", "nationality")
    assert set(others) == {"disability", "married"}


def test_a_star_in_a_name_would_be_an_intersection():
    assert guess_columns.guess_protected([text("sex*", {"f": 50, "m": 50})])[0] == ()


@pytest.mark.parametrize(
    ("ages", "cut"),
    [
        (np.linspace(18, 90, 101), (30, 60)),
        (np.linspace(21, 49, 101), (30, 45)),
        (np.linspace(55, 95, 101), (60, 75)),
        (np.linspace(0, 17, 101), (6, 12)),
        (np.full(101, 40.0), 3),
        (np.linspace(1930, 2005, 101), 3),
        ((), 3),
    ],
)
def test_where_ages_are_cut(ages, cut):
    assert guess_columns.guess_bins(tuple(float(age) for age in ages)) == cut


@pytest.mark.parametrize(
    ("names", "right"),
    [
        # two values before more, a name before none, the last before others
        ({"smoker": 2, "readmitted": 2, "ward": 5}, "readmitted"),
        ({"smoker": 2, "insured": 2}, "insured"),
        ({"smoker": 2, "ward": 5}, "smoker"),
        ({"class": 3, "survived": 2}, "survived"),
        ({"y": 2, "default": 2, "poutcome": 4}, "y"),
        ({"previous_default": 2, "default": 2, "x": 2}, "default"),
        ({"target": 0, "smoker": 2, "other": 2}, "target"),
        ({"smoker": 2, "bmi": 0, "charges": 0}, "charges"),
        ({"income": 0, "default": 2, "term": 3}, "default"),
        ({"bmi": 0, "glucose": 0}, None),
    ],
)
def test_the_label(names, right):
    seen = []
    for at, (name, values) in enumerate(names.items()):
        last = at == len(names) - 1
        if values:
            one = text(name, {f"v{i}": 50 for i in range(values)}, at=at, last=last)
        else:
            one = number(name, RNG.normal(size=200), at=at, last=last)
        seen.append(one)
    ranked = guess_label.rank_labels(seen)
    assert (ranked[0].name if ranked else None) == right


def test_a_label_that_is_mostly_missing_is_none():
    assert guess_label.label_score(text("died", {"yes": 20, "no": 20}, rows=200)) == 0


def test_reasons_and_doubts_of_a_label():
    two = {"no": 50, "yes": 50}
    named = text("died", two, last=True)
    other = text("readmitted", two)
    reason, doubts = guess_label.label_reason(named, [other])
    assert reason == "two values, a typical name, last column; others: readmitted"
    assert len(doubts) == 1
    assert "readmitted may also be" in doubts[0]
    amount = number("income", np.linspace(1, 90_000.5, 100))
    _, doubts = guess_label.label_reason(amount, [text("relapse", two, last=True)])
    assert "relapse may also be" in doubts[0]
    reason, doubts = guess_label.label_reason(text("smoker", two), [])
    assert reason == "two values"
    assert "no column has a typical name" in doubts[0]
    reason, doubts = guess_label.label_reason(None, [])
    assert "put the column to predict here" in reason
    assert "LABEL" in doubts[0]


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        ({"no": 90, "yes": 10}, "yes"),
        ({"Yes": 90, "No": 10}, "Yes"),
        ({"0": 10, "1": 90}, "1"),
        ({"1": 10, "2": 90}, "1"),
        ({"-1": 50, "1": 50}, "1"),
        ({"<=50K": 70, ">50K": 30}, ">50K"),
        ({"alive": 90, "dead": 10}, "dead"),
        ({"good": 70, "bad": 30}, "good"),
        ({"stayed": 70, "left": 30}, "left"),
        ({"A": 70, "B": 30}, "B"),
        ({"A": 30, "B": 70}, "A"),
        ({"a": 1, "b": 2, "c": 3}, ""),
    ],
)
def test_the_positive_value(values, positive):
    assert guess_label.guess_positive(text("y", values))[0] == positive


def mixed(name, numbers, odd):
    values = {**{str(v): 10 for v in numbers}, **odd}
    held = sum(values.values())
    steps = tuple(float(v) for v in np.percentile(numbers, range(101)))
    return ColumnProfile(
        name,
        "mixed",
        rows=held,
        held=held,
        distinct=len(values),
        distinct_share=len(values) / held,
        values=values,
        percentiles=steps,
        odd=tuple(odd),
    )


def test_texts_that_stand_for_nothing():
    age = mixed("age", range(20, 80), {"unknown": 3, "k.A.": 1})
    icd = mixed("diagnosis", range(200, 300), {"V57": 3, "unknown": 2})
    assert guess_columns.guess_missing([age, icd]) == ("unknown", "k.A.")
    plain = guess_columns.as_number(age)
    assert (plain.kind, plain.whole, plain.distinct, plain.held) == ("number", True, 60, 600)
    assert guess_columns.as_number(icd) is icd


def test_numbers_that_are_codes():
    seen = [
        number("admission_type_id", RNG.integers(1, 9, 300)),
        number("ward", RNG.integers(1, 30, 300)),
        number("children", RNG.integers(0, 6, 300)),
        number("number_of_sites", RNG.integers(0, 6, 300)),
        number("group", RNG.integers(0, 2, 300)),  # of two values either way is the same
        number("plz", RNG.integers(10_000, 99_999, 3_000)),
        mixed("diagnosis", range(200, 300), {"V57": 3}),
        text("insurance", {"a": 5, "b": 5}),
    ]
    codes, unfit = guess_columns.guess_categorical(seen)
    assert set(codes) == {"admission_type_id", "ward", "diagnosis"}
    assert "'V57'" in codes["diagnosis"]
    assert set(unfit) == {"plz"}
    said = guess_columns.categorical_reason(seen[:3], codes)
    assert said == "numbers that are codes; few whole numbers, used as numbers: children"


def test_a_label_or_protected_column_is_never_unfit():
    one = mixed("sex", [1, 2], {"f": 30, "m": 30})
    many = mixed("y", range(2_000), {"V57": 3})
    codes, unfit = guess_columns.guess_categorical([one, many], keep={"sex", "y"})
    assert set(codes) == {"sex", "y"}
    assert not unfit


@pytest.mark.parametrize(
    ("clients", "rows", "classes", "expected"),
    [
        (5, 1_700, True, rules.Sizes(30, 32, 0.1, (32,))),
        (5, 800, True, rules.Sizes(30, 16, 0.1, (32,))),
        (10, 45_000, True, rules.Sizes(12, 64, 0.1, (64,), seeds=2)),
        (60, 60_000, True, rules.Sizes(50, 32, 0.1, (64,), 10, 2)),
        (1_000, 10_000_000, True, rules.Sizes(10, 512, 0.1, (64,), 50, 2)),
        (5, 1_700, False, rules.Sizes(30, 32, 0.02, ())),
    ],
)
def test_sizes(clients, rows, classes, expected):
    assert rules.guess_sizes(clients, rows, classes, 8) == expected


def test_steps_of_a_regression_shrink_with_its_features():
    lrs = [rules.guess_sizes(5, 1_000, False, width).lr for width in (1, 10, 100, 1_000)]
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[-1] > 0
