"""Unusual but legitimate tables: they train, and what should be known is said."""

import datetime as dt
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data import load
from isonomy.data.tables import Roles, own
from isonomy.errors import DataError

from .making import folder, people, same, take, text, write

A, B, C = people(60), people(45, seed=1), people(50, seed=2)
TRIO = {"a.csv": A, "b.csv": B, "c.csv": C}
BASE = {"label": "ill", "protected": ["sex"]}
LONG = "word " * 30_000


def at(columns, name, change):
    return columns | {name: [change(i, v) for i, v in enumerate(columns[name])]}


def each(name, values):
    """All three clients with a column more."""
    return {
        file.replace("csv", "parquet"): table | {name: values(len(table["ill"]))}
        for file, table in TRIO.items()
    }


def days(rows):
    return [dt.date(2020, 1, 1 + i % 28) for i in range(rows)]


TABLES = {
    "plain": (TRIO, {}, ""),
    "one class at a client": (TRIO | {"b.csv": B | {"ill": [1] * 45}}, {}, ""),
    "one group at a client": (TRIO | {"b.csv": B | {"sex": ["F"] * 45}}, {}, ""),
    "one group everywhere": (
        {n: t | {"sex": ["F"] * len(t["sex"])} for n, t in TRIO.items()},
        {},
        "one group of 'sex'",
    ),
    "many groups": (
        each("town", lambda rows: [f"town {i % 30}" for i in range(rows)]),
        {"protected": ["town"]},
        "'town' has 30 groups; gaps are those between the two most different ones",
    ),
    "a label of one client": (
        TRIO | {"b.csv": at(B, "ill", lambda i, v: 2 if i < 4 else v)},
        {},
        "Label '2' occurs only at client 'b' (4 rows)",
    ),
    "labels that differ in case": (
        {
            n: at(t, "ill", lambda i, v: ("no", "Yes", "yes")[v + i % 2 * v])
            for n, t in TRIO.items()
        },
        {},
        "'Yes' and 'yes', which count as different",
    ),
    "missing numbers": (
        TRIO | {"b.csv": at(B, "score", lambda i, v: "nan" if i % 2 else v)},
        {},
        "'score' in",
    ),
    "a column empty at a client": (TRIO | {"b.csv": B | {"score": [None] * 45}}, {}, "100% at 'b'"),
    "a column empty everywhere": (
        {n: t | {"note": [None] * len(t["ill"])} for n, t in TRIO.items()},
        {},
        "Column 'note' is empty at every client",
    ),
    "missing labels": (
        TRIO | {"b.csv": at(B, "ill", lambda i, v: None if i < 7 else v)},
        {},
        "7 rows have no 'ill'",
    ),
    "missing groups": (TRIO | {"b.csv": at(B, "sex", lambda i, v: None if i < 7 else v)}, {}, ""),
    "dates": (each("seen", days), {}, "Column 'seen' contains dates"),
    "identifiers": (
        {n: t | {"patient_id": [f"{n}{i}" for i in range(len(t["ill"]))]} for n, t in TRIO.items()},
        {},
        "Column 'patient_id' has a different value in nearly every row",
    ),
    "lists": (each("box", lambda n: [[1, 2]] * n), {}, "Column 'box' contains lists or bytes"),
    "structures": (each("s", lambda n: [{"u": 1}] * n), {}, "Column 's' contains lists or bytes"),
    "bytes": (each("raw", lambda n: [b"\xff\x00"] * n), {}, "Column 'raw' contains lists or bytes"),
    "dropped lists": (each("box", lambda n: [[1, 2]] * n), {"drop": ["box"]}, ""),
    "large whole numbers": (each("n", lambda n: [2**62 + i for i in range(n)]), {}, ""),
    "large whole numbers with gaps": (
        each("n", lambda n: [None if i % 3 else 2**62 + i for i in range(n)]),
        {},
        "'n' in",
    ),
    "unsigned numbers": (
        each("n", lambda n: pa.array([2**64 - 1, 0] * n, pa.uint64())[:n]),
        {},
        "",
    ),
    "truths": (each("t", lambda n: [(True, False, None)[i % 3] for i in range(n)]), {}, "'t' in"),
    "decimals": (each("d", lambda n: [decimal.Decimal(i) / 4 for i in range(n)]), {}, ""),
    "half precision": (each("h", lambda n: pa.array(np.arange(n) / 2, pa.float16())), {}, ""),
    "dictionaries": (
        each("k", lambda n: pa.array(["u", "v", None] * n)[:n].dictionary_encode()),
        {},
        "",
    ),
    "dictionaries of few": (
        each(
            "k",
            lambda n: pa.DictionaryArray.from_arrays(
                pa.array([0, None, 1] * n, pa.uint8())[:n], pa.array(["u", "v"], pa.large_string())
            ),
        ),
        {},
        "",
    ),
    "dictionaries of numbers": (
        each("k", lambda n: pa.array([3, 5, 3] * n)[:n].dictionary_encode()),
        {},
        "",
    ),
    "names": (
        {
            n: {"größe in m²": t["age"], "a.b": t["score"], "a": t["age"], "x*y": t["age"]} | t
            for n, t in TRIO.items()
        },
        {},
        "",
    ),
    "long texts": (
        {n: at(t, "job", lambda i, v: LONG + v) for n, t in TRIO.items()},
        {},
        "",
    ),
    "texts of the world": (
        {n: at(t, "job", lambda i, v: f"{v} 日本語 é \u2028 \x85 🙂 \"'") for n, t in TRIO.items()},
        {},
        "",
    ),
    "one row at a client": (TRIO | {"b.csv": take(B, [0])}, {}, ""),
    "decimal commas": (
        {n: text(t, ";").replace(".", ",") for n, t in TRIO.items()},
        {},
        "",
    ),
    "tabs": ({n.replace("csv", "tsv"): text(t, "\t") for n, t in TRIO.items()}, {}, ""),
    "packed": ({n + ".gz": t for n, t in TRIO.items()}, {}, ""),
    "no protected column": (TRIO, {"protected": []}, ""),
}


HARD = [name for name in TABLES if name.startswith(("plain", "one ", "a label", "missing", "no "))]
TRAINS = {name: TABLES[name] for name in HARD}
LOADS = {name: TABLES[name] for name in TABLES if name not in HARD}


@pytest.mark.parametrize(("files", "data", "said"), LOADS.values(), ids=list(LOADS))
def test_it_is_read_and_what_should_be_known_is_said(tmp_path, files, data, said):
    place = folder(tmp_path, files)
    federation = load("tables", options={"path": str(place)} | BASE | data)
    assert len(federation) == 3
    assert len(federation.warnings) == bool(said)
    assert said in "".join(federation.warnings)
    for sentence in federation.warnings:
        assert sentence.endswith(".")
        assert sentence[0].isupper()


@pytest.mark.parametrize(("files", "data", "said"), TRAINS.values(), ids=list(TRAINS))
def test_it_trains_and_says_what_should_be_known(trained, files, data, said):
    notes = trained(files, **(BASE | data))
    assert said in notes
    assert bool(said) == ("Note: " in notes), notes


# --- who is a client -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("names", [["b", "a-b", "a", "B"], [10, 9, 1, 100], ["2", "10", "x", "1"]])
def test_one_table_with_a_client_column_is_the_folder_of_its_pieces(tmp_path, kind, names):
    whole = people(200, seed=4)
    whole["score"] = [None if i % 7 == 0 else v for i, v in enumerate(whole["score"])]
    who = np.random.default_rng(0).choice(len(names), 200)
    whole["clinic"] = [names[k] for k in who]
    pieces = {
        f"{name}.{kind}": {
            column: values
            for column, values in take(whole, np.flatnonzero(who == k)).items()
            if column != "clinic"
        }
        for k, name in enumerate(names)
    }
    one = write(tmp_path / f"all.{kind}", whole)
    many = folder(tmp_path / "pieces", pieces)
    roles = Roles(label="ill", protected=("sex", "sex*age"), bins={"age": 3}, rare=3)
    together = own(str(one), roles, client="clinic", seed=5)
    apart = own(str(many), roles, seed=5)
    same(together, apart)
    assert together.warnings == apart.warnings
    numbers = all(isinstance(name, int) for name in names)
    assert list(together.names) == [
        str(n) for n in (sorted(names) if numbers else sorted(map(str, names)))
    ]


def test_files_are_in_the_order_of_their_numbers(tmp_path):
    place = folder(tmp_path, {f"{n}.csv": people(20, seed=n) for n in (10, 2, 1, 33)})
    assert own(str(place), Roles(label="ill")).names == ("1", "2", "10", "33")
    write(place / "x.csv", people(20))
    assert own(str(place), Roles(label="ill")).names == ("1", "10", "2", "33", "x")


def test_rows_can_be_dealt_out_by_any_partition(tmp_path):
    path = write(tmp_path / "all.parquet", people(300))
    for partition in ("iid", "dirichlet", "power_law", "uneven", "shards"):
        federation = load(
            "tables",
            clients=3,
            partition=partition if partition != "uneven" else {"name": "uneven", "minimum": 9},
            options={"path": str(path), "label": "ill", "protected": ["sex"]},
        )
        assert len(federation) == 3
        assert len(federation.y) == 300


@pytest.mark.parametrize("gap", [False, True])
def test_rows_can_be_dealt_out_by_a_column_of_whole_numbers(tmp_path, gap):
    """Also where one is missing, which makes them reals on the way."""
    columns = people(90, ward=[None if gap and i == 0 else 7 + i % 3 for i in range(90)])
    path = write(tmp_path / "all.csv", columns)
    federation = load(
        "tables",
        partition={"name": "column", "column": "ward", "minimum": 5},
        options={"path": str(path), "label": "ill"},
    )
    assert len(federation) == 3
    assert len(federation.y) == 90
    if not gap:
        assert federation.names == ("7", "8", "9")
        assert [federation.sizes(s).sum() for s in SPLITS] == [63, 9, 18]


# --- labels and splits ---------------------------------------------------------------------------


def test_a_regression_keeps_the_numbers(tmp_path):
    place = folder(tmp_path, TRIO)
    federation = own(str(place), Roles(label="score", protected=("sex",)))
    assert (federation.classes, federation.labels) == (0, ())
    assert federation.y.dtype == torch.float32
    wanted = np.sort(np.float32(A["score"] + B["score"] + C["score"]))
    np.testing.assert_array_equal(np.sort(federation.y.numpy()), wanted)


def test_whole_numbers_are_classes_until_they_are_many(tmp_path):
    place = folder(tmp_path, TRIO)
    assert own(str(place), Roles(label="age")).classes == 0
    assert own(str(place), Roles(label="age", task="classification")).classes == len(
        set(A["age"] + B["age"] + C["age"])
    )
    assert own(str(place), Roles(label="ill", task="regression")).classes == 0
    assert own(str(place), Roles(label="ill")).labels == ("0", "1")


def test_many_classes_are_in_order_and_the_same_for_all(tmp_path):
    """Numbers by size; a class that a client lacks keeps its number."""
    files = {
        n: at(t, "ill", lambda i, v, n=n: (2, 10, 100)[(i + (n == "a.csv")) % 3 - (n == "b.csv")])
        for n, t in TRIO.items()
    }
    files["c.csv"] = files["c.csv"] | {"ill": [10.0] * 50}
    federation = own(str(folder(tmp_path, files)), Roles(label="ill"))
    assert federation.labels == ("2", "10", "100")
    assert set(federation.y[federation.ranges[2, 0, 0] :].tolist()) == {1}


@pytest.mark.parametrize(
    ("values", "positive", "labels"),
    [
        (["no", "yes"], "", ("no", "yes")),
        (["no", "yes"], "no", ("yes", "no")),
        ([True, False], "true", ("0", "1")),
        ([True, False], "False", ("1", "0")),
        ([0.0, 1.0], "0", ("1", "0")),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_positive_label_is_class_1(tmp_path, values, positive, labels, kind):
    files = {n.replace("csv", kind): at(t, "ill", lambda i, v: values[v]) for n, t in TRIO.items()}
    federation = own(str(folder(tmp_path, files)), Roles(label="ill", positive=positive))
    assert federation.labels == labels
    count = sum(t["ill"].count(1) for t in TRIO.values())
    flipped = positive in ("no", "0") or (values[0] is True and positive == "true")
    total = sum(len(t["ill"]) for t in TRIO.values())
    assert int(federation.y.sum()) == (total - count if flipped else count)


def test_a_column_can_tell_the_split(tmp_path):
    words = ["train", "TRAINING", "val", "Validation", "dev", "test", "holdout", "train"]
    files = {n: t | {"use": [words[i % 8] for i in range(len(t["ill"]))]} for n, t in TRIO.items()}
    federation = own(str(folder(tmp_path, files)), Roles(label="ill", split="use", scale="none"))
    assert "use" not in "".join(federation.features)
    at_age = federation.features.index("age")
    for k, table in enumerate(TRIO.values()):
        ages = np.array(table["age"])
        kinds = np.arange(len(ages)) % 8
        for split, mine in (("train", (0, 1, 7)), ("validation", (2, 3, 4)), ("test", (5, 6))):
            found = federation.x[federation.rows(k, split), at_age].numpy()
            np.testing.assert_array_equal(found, ages[np.isin(kinds, mine)])


# --- options -------------------------------------------------------------------------------------


def features(place, **roles):
    return own(str(place), Roles(label="ill", protected=("sex",), **roles)).features


def test_features_can_be_named_dropped_and_protected(tmp_path):
    place = folder(tmp_path, TRIO)
    jobs = ("job=clerk", "job=farmer", "job=nurse", "job=other")
    assert features(place) == ("age", "score", *jobs)
    assert features(place, keep_protected=True) == (
        "age", "score", *jobs, "sex=F", "sex=M", "sex=other",
    )  # fmt: skip
    assert features(place, features=("score", "age")) == ("score", "age")
    assert features(place, features=("sex",), keep_protected=True) == (
        "sex=F",
        "sex=M",
        "sex=other",
    )
    assert features(place, drop=("job",)) == ("age", "score")
    assert features(place, rare=1000) == ("age", "score", "job=other")


def test_numbers_can_be_categories(tmp_path):
    files = {n: t | {"ward": [i % 3 * 5 for i in range(len(t["ill"]))]} for n, t in TRIO.items()}
    files["d.csv"] = C | {"ward": [("5", "x", "10")[i % 3] for i in range(50)]}
    place = folder(tmp_path, files)
    shown = features(place, categorical=("ward",), features=("ward",))
    assert shown == ("ward=0", "ward=5", "ward=10", "ward=x", "ward=other")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_numbers_can_be_indicated_and_filled(tmp_path, kind):
    table = {"a": [1.0, None, 3.0, 8.0], "b": [1, 2, 3, 4], "y": [0, 1, 0, 1], "s": ["train"] * 4}
    place = folder(tmp_path, {f"a.{kind}": table})
    for impute, fill in (("mean", 4.0), ("median", 3.0), ("zero", 0.0)):
        roles = Roles(label="y", split="s", impute=impute, indicate=True, scale="none")
        federation = own(str(place), roles)
        assert federation.features == ("a", "a is missing", "b")
        np.testing.assert_array_equal(
            federation.x.numpy(), [[1, 0, 1], [fill, 1, 2], [3, 0, 3], [8, 0, 4]]
        )


def test_the_median_fills_what_is_missing_outside_of_training_rows_too(tmp_path):
    table = {"a": [1.0, 2.0, 9.0, None], "y": [0, 1, 0, 1], "s": ["train"] * 3 + ["test"]}
    place = folder(tmp_path, {"a.csv": table})
    roles = Roles(label="y", split="s", impute="median", scale="none")
    assert own(str(place), roles).x[:, 0].tolist() == [1, 2, 9, 2]


def test_scales(tmp_path):
    place = folder(tmp_path, TRIO)
    for scale, low, high in (("minmax", 0, 1), ("none", 18, 89)):
        federation = own(str(place), Roles(label="ill", scale=scale), fractions=(1, 0, 0))
        ages = federation.x[:, 0]
        assert (float(ages.min()), float(ages.max())) == (low, high)
    standard = own(str(place), Roles(label="ill"), fractions=(1, 0, 0)).x[:, :2].double()
    torch.testing.assert_close(standard.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard.std(0, correction=0), torch.ones(2).double())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_text_or_a_number_can_stand_for_missing(tmp_path, kind):
    """An empty field is missing in any case."""
    table = people(40)
    table["age"] = [-9 if i % 4 == 0 else v for i, v in enumerate(table["age"])]
    table["score"] = [None if i % 5 == 0 else v for i, v in enumerate(table["score"])]
    table["job"] = ["unknown" if i % 3 == 0 else v for i, v in enumerate(table["job"])]
    roles = Roles(label="ill", missing=("-9", "unknown"), indicate=True, rare=1)
    federation = own(str(folder(tmp_path, {f"a.{kind}": table})), roles, fractions=(1, 0, 0))
    gone = {
        name: int(federation.x[:, i].sum())
        for i, name in enumerate(federation.features)
        if name.endswith("is missing")
    }
    assert gone == {"age is missing": 10, "score is missing": 8, "job is missing": 14}


def test_a_group_called_missing_is_where_missing_ones_go(tmp_path):
    table = people(40) | {"sex": [("a", "missing", "z", None)[i % 4] for i in range(40)]}
    federation = own(
        str(folder(tmp_path, {"a.csv": table})), Roles(label="ill", protected=("sex",))
    )
    assert federation.attributes[0].levels == ("a", "missing", "z")
    assert np.bincount(federation.groups[:, 0].numpy()).tolist() == [10, 20, 10]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso-8859-15", "utf-8-sig"])
def test_other_encodings_can_be_said(tmp_path, encoding):
    table = at(people(60), "job", lambda i, v: {"nurse": "Krankenschwester für Ärzte"}.get(v, v))
    table = {("größe" if name == "age" else name): values for name, values in table.items()}
    plain = own(str(folder(tmp_path / "utf8", {"a.csv": table})), Roles(label="ill"))
    raw = text(table).encode(encoding)
    other = own(
        str(folder(tmp_path / "other", {"a.csv": raw})), Roles(label="ill"), encoding=encoding
    )
    assert "job=Krankenschwester für Ärzte" in plain.features
    same(plain, other)


def test_names_of_features_are_unique(tmp_path):
    columns = {
        "a": [None, 1.0, 2.0] * 10,
        "a is missing": [0, 1] * 15,
        "p": ["q=r", "s"] * 15,
        "p=q": ["r", "t"] * 15,
        "y": [0, 1, 1] * 10,
    }
    federation = own(
        str(folder(tmp_path, {"a.csv": columns})), Roles(label="y", indicate=True, rare=1)
    )
    assert len(set(federation.features)) == len(federation.features) == 9
    assert federation.features[:3] == ("a", "a is missing", "a is missing (2)")


def test_the_preprocessing_is_kept_with_the_model_and_serves_new_rows(trained, place):
    from isonomy.data.tables import preprocessing
    from isonomy.data.tables.files import read

    trained(TRIO, **BASE)
    path = place / "out" / "model" / "preprocessing.json"
    fitted = preprocessing.load(path)
    federation = load("tables", options={"path": "tables", **BASE})
    assert json.loads(path.read_text()) == json.loads(fitted.dump()) == federation.preprocessing
    new = {"job": ["nurse", "pilot", None], "age": [50, None, 20], "score": [0.5, 1, None]}
    x = fitted.transform(read(write(place / "new.csv", new)))
    assert x.shape == (3, len(federation.features))
    at_job = [federation.features.index(f"job={w}") for w in ("nurse", "other")]
    assert x[:, at_job].tolist() == [[1, 0], [0, 1], [0, 1]]
    with pytest.raises(DataError, match="no column 'score'"):
        fitted.transform(read(write(place / "less.csv", {"job": ["a"], "age": [1]})))
    with pytest.raises(DataError, match=r"'age' of .*texts.csv contains text"):
        fitted.transform(read(write(place / "texts.csv", new | {"age": ["x", "y", "z"]})))
    path.write_text("{}")
    with pytest.raises(DataError, match="not a valid preprocessing"):
        preprocessing.load(path)
