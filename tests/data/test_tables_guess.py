"""Guesses at what columns are: each rule by itself, then whole tables as people have them."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isonomy.data.tables import guess as rules
from isonomy.data.tables import guess_columns, guess_label, name_hints
from isonomy.data.tables.column_profile import ColumnProfile, one_to_one, profile_columns
from isonomy.data.tables.sample import Look, broken_lines, encoding_of, look_at, spread, text_kind
from isonomy.errors import DataError

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
        (10, 45_000, True, rules.Sizes(20, 64, 0.1, (64,))),
        (60, 60_000, True, rules.Sizes(50, 32, 0.1, (64,), 10)),
        (1_000, 10_000_000, True, rules.Sizes(10, 512, 0.1, (64,), 50)),
        (5, 1_700, False, rules.Sizes(30, 32, 0.02, ())),
    ],
)
def test_sizes(clients, rows, classes, expected):
    assert rules.guess_sizes(clients, rows, classes, 8) == expected


def test_steps_of_a_regression_shrink_with_its_features():
    lrs = [rules.guess_sizes(5, 1_000, False, width).lr for width in (1, 10, 100, 1_000)]
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[-1] > 0


# --- looking at files ----------------------------------------------------------------------------


def write(path, rows, header=None, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ([header] if header else []) + rows
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


def test_a_large_file_is_looked_at_along_its_length(tmp_path):
    rows = [f"{k},{i % 7},{i % 2}" for k in "abcdefgh" for i in range(2_000)]  # sorted
    path = write(tmp_path / "all.csv", rows, "site,x,died")
    look = look_at(path, most=16_000)
    (table,) = look.tables.values()
    assert 1_500 < table.rows < 3_000
    assert look.rows_text == "about 16,000"
    assert not look.whole
    assert look.rows == pytest.approx(16_000, rel=0.01)
    assert set(table.columns["site"].levels) == set("abcdefgh")
    assert table.columns["x"].values.max() == 6
    made = rules.guess(look)
    assert (made.client, made.why["client"]) == ("site", "8 values or more, and a typical name")
    more = rules.resized(made, 200, 16_000)
    assert more.why["client"] == "200 values, and a typical name"
    assert more.sizes.cohort == 20


def test_line_breaks_in_texts_keep_the_look_at_the_beginning(tmp_path):
    rows = [f'"said:\nnothing",{i % 2}' for i in range(5_000)]
    path = write(tmp_path / "all.csv", rows, "said,died")
    (table,) = look_at(path, most=8_000).tables.values()
    assert table.columns["said"].levels == ("said:\nnothing",)
    assert set(table.columns["died"].values.tolist()) == {0, 1}


def test_a_large_packed_file(tmp_path):
    rows = "\n".join(["site,died", *(f"{'ab'[i % 2]},{i % 3 % 2}" for i in range(40_000))])
    path = tmp_path / "all.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    look = look_at(path, most=10_000)
    (table,) = look.tables.values()
    assert table.rows == 2_497  # (10,000 - 10) // 4 whole lines
    assert (look.rows, look.whole) == (pytest.approx(40_000, rel=0.01), False)
    whole = look_at(path)
    assert (whole.rows, whole.whole) == (40_000, True)


def test_a_large_parquet_file(tmp_path, monkeypatch):
    monkeypatch.setattr("isonomy.data.tables.sample.ROWS", 800)
    table = pa.table({"bank": np.repeat(np.arange(8), 500), "y": np.arange(4_000) % 2})
    pq.write_table(table, tmp_path / "all.parquet", row_group_size=500)
    look = look_at(tmp_path / "all.parquet")
    (seen,) = look.tables.values()
    assert (seen.rows, look.rows, look.whole) == (800, 4_000, False)
    assert set(seen.columns["bank"].values.tolist()) == set(range(8))


def test_of_many_files_some_are_looked_into_and_all_headers(tmp_path):
    for k in range(30):
        more = ",extra" if k == 7 else ""
        rows = [f"{i},{i % 2}{',1' * bool(more)}" for i in range(50)]
        write(tmp_path / "in" / f"c{k:02d}.csv", rows, f"x,died{more}")
    look = look_at(tmp_path / "in", files=5)
    assert len(look.tables) == 5
    assert {0, 29} <= set(look.tables)
    assert look.rows == pytest.approx(1_500, rel=0.1)
    extra = next(one for one in profile_columns(look) if one.name == "extra")
    assert len(extra.absent) == 29
    assert spread(30, 5) == sorted(look.tables)


def test_a_folder_of_one_table_is_that_table(tmp_path):
    write(tmp_path / "in" / "all.csv", ["a,1", "b,0"] * 20, "bank,y")
    look = look_at(tmp_path / "in")
    assert not look.folder
    assert rules.guess(look).client == "bank"


def test_encodings(tmp_path):
    rows = ["Köln,1", "Ulm,0"] * 20
    old = write(tmp_path / "a.csv", rows, "city,y", "cp1252")
    plain = write(tmp_path / "b.csv", ["Bonn,1"], "city,y")
    new = write(tmp_path / "c.csv", rows, "city,y")
    assert encoding_of([old, plain], [0, 1]) == "cp1252"
    assert encoding_of([plain, new], [0, 1]) == "utf-8"
    with pytest.raises(DataError, match=r"a\.csv is not UTF-8 text but c\.csv is"):
        encoding_of([old, plain, new], [0, 1, 2])
    assert text_kind(b"\x81") == "latin-1"
    assert not broken_lines(b'"a","b"\n"c","d"\n')
    assert "cp1252" in " ".join(rules.guess(look_at(old)).doubts)


# --- what is seen --------------------------------------------------------------------------------


def tables(tmp_path, **texts) -> Look:
    for name, rows in texts.items():
        write(tmp_path / "in" / f"{name}.csv", rows[1:], rows[0])
    return look_at(tmp_path / "in")


def test_columns_over_all_tables(tmp_path):
    look = tables(
        tmp_path,
        a=["x,who,when,code,note,gone", *(f"{i},A,2020-01-01,{i % 3},t{i}," for i in range(9))],
        b=["who,x,when,code,note,gone", *(f"B,{i}.5,2020-01-02,V{i % 3},1," for i in range(9))],
    )
    seen = {one.name: one for one in profile_columns(look)}
    assert (seen["x"].kind, seen["x"].whole, seen["x"].distinct) == ("number", False, 18)
    assert seen["who"].names_client
    assert seen["when"].kind == "time"
    assert (seen["code"].kind, set(seen["code"].odd)) == ("mixed", {"V0", "V1", "V2"})
    assert seen["note"].distinct_share == pytest.approx(10 / 18)
    assert seen["gone"].kind == "empty"
    assert seen["gone"].last
    assert not seen["x"].numbers_rows


def test_columns_that_go_together(tmp_path):
    rows = [f"{'ab'[i % 2]},{i % 2},{i % 3}" for i in range(60)]
    look = tables(tmp_path, all=["letter,number,other", *rows])
    (table,) = look.tables.values()
    assert one_to_one([table], "letter", "number")
    assert not one_to_one([table], "letter", "other")


# --- whole tables --------------------------------------------------------------------------------


def people(count, seed=0, **more):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        glucose = rng.normal(6, 1)
        row = {
            "sex": rng.choice(["f", "m"]),
            "age": int(rng.integers(18, 95)),
            "glucose": round(float(glucose), 2),
            "died": "yes" if glucose + rng.normal() > 6.5 else "no",
        }
        out.append(row | {k: v(rng) for k, v in more.items()})
    header = ",".join(out[0])
    return [header, *(",".join(str(v) for v in row.values()) for row in out)]


def test_columns_that_differ_by_a_letter_are_pointed_out(tmp_path):
    first, second = people(40), people(40, 1)
    second[0] = second[0].replace("glucose", "Glucose")
    made = rules.guess(tables(tmp_path, a=first, b=second))
    assert made.drop == {"glucose": "not in the table of b", "Glucose": "not in the table of a"}
    assert any("'glucose' and 'Glucose'" in doubt for doubt in made.doubts)


def test_files_that_are_parts_of_one_table_are_pointed_out(tmp_path):
    made = rules.guess(tables(tmp_path, train=people(40), test=people(40, 1)))
    assert any("called test, train" in doubt for doubt in made.doubts)


def test_a_table_without_a_line_of_names_is_pointed_out(tmp_path):
    rows = ["39, State-gov,Male,White", "50, Private,Male,White", "38,Private,Female,Black"] * 10
    made = rules.guess(tables(tmp_path, a=rows))
    assert any("looks like values (39, State-gov, Male and 1 more)" in d for d in made.doubts)
    pixels = [",".join(map(str, range(9))), *(",".join("5" * 9) for _ in range(9))]
    made = rules.guess(tables(tmp_path / "other", a=pixels))
    assert not any("looks like values" in doubt for doubt in made.doubts)


def test_what_tells_the_label_is_dropped(tmp_path):
    rows = people(60)
    rows = [rows[0] + ",state_at_end"] + [
        row + (",dead" if row.endswith("yes") else ",alive") for row in rows[1:]
    ]
    made = rules.guess(tables(tmp_path, a=rows, b=rows))
    assert made.label == "died"
    assert made.drop["state_at_end"].startswith("determines the label")


def test_what_names_the_client_twice_is_dropped(tmp_path):
    rows = people(90, site=lambda rng: rng.choice(["A", "B", "C"]))
    rows = [rows[0] + ",site_city"] + [
        row + "," + {"A": "Ulm", "B": "Bonn", "C": "Kiel"}[row[-1]] for row in rows[1:]
    ]
    made = rules.guess(tables(tmp_path, all=rows))
    assert (made.client, made.label) == ("site", "died")
    assert made.drop == {"site_city": "corresponds one to one to site"}
    assert made.features == ("glucose",)
    assert made.clients == 0


def test_a_habit_of_writing_missing_values_is_pointed_out(tmp_path):
    stays = lambda rng: rng.choice([0, 1, 2, 3, 999], p=[0.3, 0.3, 0.2, 0.1, 0.1])  # noqa: E731
    made = rules.guess(tables(tmp_path, a=people(90, stays=stays), b=people(90, 1, stays=stays)))
    assert any("'stays' is 999 in" in doubt for doubt in made.doubts)


def test_rows_of_one_table_without_clients_are_dealt_out(tmp_path):
    made = rules.guess(tables(tmp_path, all=people(300)))
    assert (made.client, made.clients) == ("", 6)
    assert "no column seems to identify clients" in made.why["client"]


def test_unknown_ages(tmp_path):
    rows = people(120)
    rows[5] = "f,unbekannt,6.1,no"
    made = rules.guess(tables(tmp_path, a=rows, b=people(120, 1)))
    assert made.missing == ("unbekannt",)
    assert made.protected == ("sex", "age")
    assert "age" in made.bins


def test_a_split_with_which_a_client_could_not_train_is_none(tmp_path):
    parts = lambda rng: rng.choice(["train", "test"])  # noqa: E731
    good, bad = people(40, part=parts), people(40, 1, part=lambda rng: "test")
    assert rules.guess(tables(tmp_path / "x", a=good, b=good)).split == "part"
    assert rules.guess(tables(tmp_path / "y", a=good, b=bad)).split == ""


def test_nothing_to_predict(tmp_path):
    rows = ["a,b,c", *(f"{i * 0.1:.1f},{i * i * 0.3:.1f},{i * 0.7:.1f}" for i in range(90))]
    made = rules.guess(tables(tmp_path, a=rows, b=rows))
    assert made.label == ""
    assert made.classes == ()
    assert made.sizes.hidden
