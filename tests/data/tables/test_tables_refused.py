"""Every way to get a table wrong: one sentence, exit code 2, nothing written."""

import datetime as dt
import gzip
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .making import folder, people, text

A, B = people(30), people(24, seed=1)
PAIR = {"a.csv": A, "b.csv": B}
BASE = {"label": "ill", "protected": ["sex"]}


def packed(columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def damaged(raw, at, by=8):
    return raw[:at] + bytes(255 - c for c in raw[at : at + by]) + raw[at + by :]


def changed(columns, name, row, value):
    """The columns with another value in a row (from 1)."""
    values = list(columns[name])
    values[row - 1] = value
    return columns | {name: values}


def without(columns, *names):
    return {name: values for name, values in columns.items() if name not in names}


def renamed(columns, old, new):
    return {new if name == old else name: values for name, values in columns.items()}


DAYS = [f"2020-01-{1 + i % 28:02d}" for i in range(30)]
MANY = text(people(20_000))
CASES = {
    # --- names of columns
    "no such label": (PAIR, {"label": "il"}, ["no client has a column 'il'", "mean 'ill'?"]),
    "no label named": (PAIR, {"label": ""}, ["no label"]),
    "no such protected": (PAIR, {"protected": ["sxe"]}, ["'sxe'", "mean 'sex'?"]),
    "no such part": (PAIR, {"protected": ["sex*jib"]}, ["'jib'", "mean 'job'?"]),
    "no such feature": (PAIR, {"features": ["agee"]}, ["'agee'", "mean 'age'?"]),
    "no such drop": (PAIR, {"drop": ["agee"]}, ["'agee'", "mean 'age'?"]),
    "no such split": (PAIR, {"split": "part"}, ["'part'", "age, score, job, sex, ill"]),
    "no such numeric": (PAIR, {"numeric": ["agee"]}, ["'agee'"]),
    "no such categorical": (PAIR, {"categorical": ["agee"]}, ["'agee'"]),
    "one table": ({"a.csv": A}, {"label": "il"}, ["the table has no column 'il'"]),
    "no such option": (PAIR, {"lable": "ill"}, ["'lable'", "mean 'label'?"]),
    "label protected": (PAIR, {"protected": ["ill"]}, ["'ill' is the label"]),
    "label a feature": (PAIR, {"features": ["ill"]}, ["'ill' is the label"]),
    "protected twice": (PAIR, {"protected": ["sex", "sex"]}, ["every attribute once"]),
    "protected with itself": (PAIR, {"protected": ["sex*sex"]}, ["'sex*sex'", "different columns"]),
    "protected with nothing": (PAIR, {"protected": ["sex*"]}, ["'sex*'", "'sex*race'"]),
    "protected and a feature": (PAIR, {"features": ["age", "sex"]}, ["'sex'", "keep_protected"]),
    "protected and dropped": (PAIR, {"drop": ["sex"]}, ["'sex'", "remove it from drop"]),
    "feature and dropped": (PAIR, {"features": ["age"], "drop": ["age"]}, ["'age'", "choose one"]),
    "both kinds": (PAIR, {"numeric": ["age"], "categorical": ["age"]}, ["'age'", "choose one"]),
    "split a feature": (PAIR, {"split": "job", "features": ["job"]}, ["'job' is the split"]),
    "no feature left": (PAIR, {"drop": ["age", "score", "job"]}, ["no column is left"]),
    "a star in a name": (
        {"a.csv": renamed(A, "age", "sex*job"), "b.csv": renamed(B, "age", "se*jo")},
        {"protected": ["se*jo"]},
        ["column 'se*jo'", "rename it"],
    ),
    # --- files
    "no rows": (PAIR | {"c.csv": {k: [] for k in A}}, {}, ["tables/c.csv", "no rows"]),
    "no rows nor line end": (PAIR | {"c.csv": "age,ill"}, {}, ["tables/c.csv", "no rows"]),
    "no rows in Parquet": (
        PAIR | {"c.parquet": pa.table({k: pa.array([], pa.string()) for k in A})},
        {},
        ["tables/c.parquet", "no rows"],
    ),
    "zero bytes": (PAIR | {"c.csv": b""}, {}, ["tables/c.csv is empty"]),
    "blank": (PAIR | {"c.csv": "\n \n\n"}, {}, ["tables/c.csv is empty"]),
    "zero bytes of Parquet": (PAIR | {"c.parquet": b""}, {}, ["tables/c.parquet", "0 bytes"]),
    "Latin-1 among UTF-8": (
        PAIR | {"c.csv": text(changed(A, "job", 7, "Ärztin")).encode("latin-1")},
        {},
        ["tables/c.csv is not UTF-8 text (line 8, byte 0xc4)", 'encoding = "cp1252"'],
    ),
    "Latin-1 far down": (
        {"a.csv": A, "c.csv": (MANY + '50,0,"Ärztin","F",1\n').encode("latin-1")},
        {},
        ["tables/c.csv is not UTF-8 text (line 20002, byte 0xc4)"],
    ),
    "UTF-8 cut in a letter": (
        {"a.csv": A, "c.csv": text(A).encode() + b'50,0,"\xc3",F,1\n'},
        {},
        ["tables/c.csv is not UTF-8 text (line 32, byte 0xc3)"],
    ),
    "UTF-16": (PAIR | {"c.csv": text(A).encode("utf-16")}, {}, ["UTF-16", "save it as UTF-8"]),
    "UTF-16 without a mark": (
        PAIR | {"c.csv": text(A).encode("utf-16-le")},
        {},
        ["tables/c.csv contains null bytes", "UTF-8"],
    ),
    "not the encoding": (
        PAIR | {"c.csv": text(changed(A, "job", 7, "\x81")).encode("latin-1")},
        {"encoding": "cp1252"},
        ["is not CP1252 text (line 8, byte 0x81)"],
    ),
    "no such encoding": (PAIR, {"encoding": "utf-9"}, ["'utf-9'", "cp1252"]),
    "no encoding of texts": (PAIR, {"encoding": "base64"}, ["'base64'", "cp1252"]),
    "a short line": (
        {"a.csv": A, "c.csv": text(A) + '1,2,"nurse","F"\n' + text(B).split("\n", 1)[1]},
        {},
        ["row 31 of tables/c.csv has 4 values but there are 5 columns"],
    ),
    "a long line far down": (
        {"a.csv": A, "c.csv": MANY + "1,2,nurse,F,0,extra\n" + MANY.split("\n", 1)[1] * 3},
        {},
        ["row 20001 of tables/c.csv has 6 values but there are 5 columns", "quotation marks"],
    ),
    "a quotation mark too few": (
        {"a.csv": A, "c.csv": text(A) + '1,2,"nurse,F,0\n' + text(B).split("\n", 1)[1]},
        {},
        ["a quotation mark in row 31 of tables/c.csv is not closed"],
    ),
    "a quotation mark too few at the end": (
        {"a.csv": A, "c.csv": text(A) + '1,2,nurse,F,"0\n1,2,clerk,M,1\n'},
        {},
        ["a quotation mark in row 31 of tables/c.csv is not closed"],
    ),
    "the same, packed": (
        {"a.csv": A, "c.csv.gz": gzip.compress((text(A) + '1,2,nurse,F,"0\n1,2,').encode())},
        {},
        ["a quotation mark in row 31 of tables/c.csv.gz is not closed"],
    ),
    "a quotation mark too few in the names": (
        PAIR | {"c.csv": text(A).replace('"job"', '"job', 1)},
        {},
        ["header line of tables/c.csv", "quotation mark"],
    ),
    "a name over two lines": (
        PAIR | {"c.csv": text(renamed(A, "job", "j\nob"))},
        {},
        ["header line of tables/c.csv", "on one line"],
    ),
    "two columns of a name": (
        PAIR | {"c.csv": text(A).replace('"score"', '"age"', 1)},
        {},
        ["tables/c.csv has two columns called 'age'"],
    ),
    "two but for spaces": (
        PAIR | {"c.parquet": renamed(A, "score", " age ")},
        {},
        ["tables/c.parquet has two columns called 'age'"],
    ),
    "a column without name": (
        PAIR | {"c.csv": text(A).replace('"age"', '""', 1)},
        {},
        ["column 1 of tables/c.csv has no name"],
    ),
    "a column without name between tabs": (
        PAIR | {"c.tsv": text(A, "\t").replace('"age"', "", 1)},
        {},
        ["column 1 of tables/c.tsv has no name"],
    ),
    "Parquet cut off": (
        PAIR | {"c.parquet": packed(A)[:-9]},
        {},
        ["tables/c.parquet cannot be read as Parquet", "complete copy"],
    ),
    "Parquet damaged": (
        PAIR | {"c.parquet": damaged(packed(A), 4, 60)},
        {},
        ["tables/c.parquet cannot be read as Parquet"],
    ),
    "CSV called Parquet": (
        PAIR | {"c.parquet": text(A)},
        {},
        ["tables/c.parquet cannot be read as Parquet", "another kind of file"],
    ),
    "Parquet called CSV": (
        PAIR | {"c.csv": packed(A)},
        {},
        ["tables/c.csv contains null bytes", ".parquet"],
    ),
    "gz cut off": (
        PAIR | {"c.csv.gz": gzip.compress(text(A).encode())[:-20]},
        {},
        ["tables/c.csv.gz cannot be read", "cut off"],
    ),
    "gz cut off far down": (
        PAIR | {"c.csv.gz": gzip.compress(MANY.encode())[:-2000]},
        {},
        ["tables/c.csv.gz cannot be read", "cut off"],
    ),
    "gz damaged": (
        PAIR | {"c.csv.gz": damaged(gzip.compress(text(A).encode()), 40)},
        {},
        ["tables/c.csv.gz cannot be read", "complete copy"],
    ),
    "gz damaged far down": (
        PAIR | {"c.csv.gz": damaged(gzip.compress(MANY.encode()), 60_000)},
        {},
        ["tables/c.csv.gz cannot be read", "complete copy"],
    ),
    "no gz": (PAIR | {"c.csv.gz": text(A)}, {}, ["tables/c.csv.gz cannot be read"]),
    "two files of a name": (PAIR | {"a.parquet": A}, {}, ["two tables", "'a'"]),
    "no table": ({"notes.txt": "x", ".hidden.csv": "a"}, {}, ["no table in the folder 'tables'"]),
    "no such path": ({}, {"path": "tabels"}, ["'tabels'", "data.path", "mean 'tables'?"]),
    "no path": (PAIR, {"path": ""}, ["data.path is not set"]),
    "no such user": ({}, {"path": "~nobody-of-this-name/x"}, ["'~nobody-of-this-name/x'"]),
    "a path too long": ({}, {"path": "x" * 300}, ["cannot be opened", "data.path"]),
    "another kind of file": (
        {"a.xlsx": "x"},
        {"path": "tables/a.xlsx"},
        ["'tables/a.xlsx' is not a table file", ".parquet"],
    ),
    # --- what clients hold
    "a column less": (
        {"a.csv": A, "b.csv": without(B, "age")},
        {},
        ["client 'b' has no column 'age', which client 'a' has", 'drop = ["age"]'],
    ),
    "a column misspelt": (
        {"a.csv": A, "b.csv": renamed(B, "age", "agee")},
        {},
        ["client 'b' has no column 'age'", "rename 'agee'"],
    ),
    "a column more": (
        {"a.csv": A, "b.csv": B, "c.csv": A | {"extra": [1] * 30}},
        {},
        ["client 'a' and another client have no column 'extra', which client 'c' has"],
    ),
    "no label at one": (
        {"a.csv": A, "b.csv": without(B, "ill")},
        {},
        ["client 'b' has no column 'ill'", "add it there."],
    ),
    "no protected at one": (
        {"a.csv": A, "b.csv": without(B, "sex")},
        {},
        ["client 'b' has no column 'sex'", "add it there (it may be empty)."],
    ),
    "texts for numbers": (
        {"a.csv": A, "b.csv": changed(B, "score", 9, "high")},
        {},
        ["'score' contains text (row 9) at client 'b' and numbers at client 'a'", "missing"],
    ),
    "texts for numbers of a label": (
        {"a.csv": A, "b.csv": B | {"ill": ["yes", "no"] * 12}},
        {},
        ["'ill' contains", "client 'b'", "client 'a'", 'categorical = ["ill"]'],
    ),
    "texts where numbers are declared": (
        {"a.csv": changed(A, "score", 3, "n.k."), "b.csv": changed(B, "score", 2, "n.k.")},
        {"numeric": ["score"]},
        ["'score' is declared numeric", "text (row 3) at client 'a'", "missing"],
    ),
    "dates for texts": (
        {"a.csv": A | {"job": DAYS}, "b.csv": B},
        {},
        ["'job' contains", "dates", "text", 'drop = ["job"]'],
    ),
    "lists for numbers": (
        {"a.parquet": A | {"age": [[1, 2]] * 30}, "b.csv": B},
        {},
        ["'age' contains", "lists or bytes at client 'a'"],
    ),
    "an infinite number": (
        {"a.csv": A, "b.csv": changed(B, "score", 5, "inf")},
        {},
        ["column 'score' of tables/b.csv contains an infinite number in row 5", "empty"],
    ),
    "an infinite number in Parquet": (
        {"a.csv": A, "b.parquet": changed(B, "score", 5, -np.inf)},
        {},
        ["column 'score' of tables/b.parquet contains an infinite number in row 5"],
    ),
    "an infinite number in one table": (
        {"all.csv": changed(A, "score", 17, "-Infinity")},
        {"path": "tables/all.csv", "partition": "iid", "clients": 2},
        ["column 'score' of tables/all.csv contains an infinite number in row 17"],
    ),
    "an infinite label": (
        {"a.csv": A, "b.csv": changed(B, "score", 5, "inf")},
        {"label": "score"},
        ["column 'score' of tables/b.csv contains an infinite number in row 5"],
    ),
    "an infinite protected number": (
        {"a.csv": A, "b.csv": changed(B, "score", 5, "inf")},
        {"protected": ["score"], "bins": {"score": 3}},
        ["column 'score' of tables/b.csv contains an infinite number in row 5"],
    ),
    "a number beyond features": (
        {"a.csv": A, "b.csv": changed(B, "score", 5, "1" + "0" * 50)},
        {},
        ["column 'score' of tables/b.csv contains a number as large as 1e+50 in row 5"],
    ),
    "a number far from all": (
        {
            "a.csv": A | {"age": [1e-30, 2e-30] * 15, "part": ["train", "train", "test"] * 10},
            "b.csv": B | {"age": [1e-30, 2e-30, 1e30] * 8, "part": ["train", "train", "test"] * 8},
        },
        {"split": "part"},
        ["column 'age' of tables/b.csv contains a number in row 3 that is too far"],
    ),
    # --- labels
    "one label": (
        {"a.csv": A | {"ill": [1] * 30}, "b.csv": B | {"ill": [1] * 24}},
        {},
        ["'ill' is '1' in every row of every client"],
    ),
    "no label": (
        {"a.csv": A | {"ill": [None] * 30}, "b.csv": B | {"ill": [None] * 24}},
        {},
        ["'ill' is empty in every row"],
    ),
    "no label at a client": (
        {"a.csv": A, "b.csv": B | {"ill": [None] * 24}},
        {},
        ["tables/b.csv has no row to train on"],
    ),
    "label of texts to regress": (PAIR, {"label": "job", "task": "regression"}, ["'job'", "text"]),
    "label of dates": ({"a.csv": A | {"day": DAYS}}, {"label": "day"}, ["'day' contains dates"]),
    "label of dates declared categorical": (
        {"a.csv": A | {"day": DAYS}},
        {"label": "day", "categorical": ["day"]},
        ["'day' contains dates"],
    ),
    "label of lists": (
        {"a.parquet": A | {"l": [[1]] * 30}},
        {"label": "l"},
        ["'l' contains lists or bytes"],
    ),
    "too many classes": (
        {"a.csv": people(1200) | {"name": [f"n{i}" for i in range(1200)]}},
        {"label": "name"},
        ["'name' has more than 1,000 different values"],
    ),
    "positive is no label": (PAIR, {"positive": "2"}, ["positive is '2'", "0, 1"]),
    "positive is misspelt": (
        PAIR,
        {"label": "sex", "protected": [], "positive": "f"},
        ["positive is 'f'", "F, M"],
    ),
    "positive of three": (
        PAIR,
        {"label": "job", "positive": "nurse"},
        ["'job' has 3 values (clerk, farmer, nurse)", "remove positive"],
    ),
    "positive of a number": (PAIR, {"label": "score", "positive": "1"}, ["as a number"]),
    "no such task": (PAIR, {"task": "ranking"}, ["'ranking'", "classification"]),
    # --- protected
    "protected numbers": (
        PAIR,
        {"protected": ["age"]},
        ["'age' contains numbers", "bins = { age ="],
    ),
    "protected texts without end": (
        {"a.csv": people(1200) | {"name": [f"n{i}" for i in range(1200)]}},
        {"protected": ["name"]},
        ["'name' has more than 1,000 different values"],
    ),
    "protected and empty": (
        {"a.csv": A | {"sex": [None] * 30}, "b.csv": B | {"sex": [None] * 24}},
        {},
        ["protected column 'sex' is empty"],
    ),
    "protected dates": (
        {"a.csv": A | {"day": DAYS}},
        {"protected": ["day"]},
        ["'day' contains dates", "an age"],
    ),
    "protected dates declared categorical": (
        {"a.csv": A | {"day": DAYS}},
        {"protected": ["day"], "categorical": ["day"]},
        ["'day' contains dates"],
    ),
    "bins of texts": (PAIR, {"bins": {"sex": [1]}}, ["'sex'", "contains text"]),
    "bins of classes": (
        PAIR,
        {"protected": ["age"], "bins": {"age": 3}, "categorical": ["age"]},
        ["'age'", "categorical"],
    ),
    "bins of what is not protected": (PAIR, {"bins": {"age": 3}}, ["'age'", "not protected"]),
    "bins out of order": (
        PAIR,
        {"protected": ["age"], "bins": {"age": [60, 25]}},
        ["[60, 25]", "ascending"],
    ),
    "bins twice": (PAIR, {"protected": ["age"], "bins": {"age": [25, 25]}}, ["[25, 25]"]),
    "bins without edges": (PAIR, {"protected": ["age"], "bins": {"age": []}}, ["[]"]),
    "bins that are no number": (
        PAIR,
        {"protected": ["age"], "bins": {"age": [float("nan")]}},
        ["[nan]", "ascending"],
    ),
    "bins without end": (PAIR, {"protected": ["age"], "bins": {"age": [1, float("inf")]}}, ["inf"]),
    "bins of a text": (PAIR, {"protected": ["age"], "bins": {"age": "4"}}, ["'4'"]),
    "one bin": (PAIR, {"protected": ["age"], "bins": {"age": 1}}, ["2 to 100"]),
    "bins beyond number": (PAIR, {"protected": ["age"], "bins": {"age": 10**9}}, ["2 to 100"]),
    "bins that are no table": (PAIR, {"bins": 3}, ["bins = 3", "a table"]),
    # --- features and options
    "a feature of dates": (
        {"a.csv": A | {"day": DAYS}},
        {"features": ["day", "age"]},
        ["feature 'day' contains dates"],
    ),
    "a feature of lists": (
        {"a.parquet": A | {"l": [[1]] * 30}},
        {"features": ["l", "age"]},
        ["feature 'l' contains lists or bytes"],
    ),
    "numeric dates": (
        {"a.csv": A | {"day": DAYS}},
        {"numeric": ["day"]},
        ["'day' is declared numeric", "dates in the table"],
    ),
    "no such scale": (PAIR, {"scale": "log"}, ["'log'", "minmax"]),
    "no such impute": (PAIR, {"impute": "mode"}, ["'mode'", "median"]),
    "rare of nothing": (PAIR, {"rare": 0}, ["rare is 0"]),
    "fractions of more": (PAIR, {"fractions": [0.5, 0.5, 0.5]}, ["[0.5, 0.5, 0.5]", "add up to 1"]),
    # --- clients
    "a word for a split": (
        {"a.csv": A | {"part": ["train", "tset"] * 15}},
        {"split": "part"},
        [
            "row 2 of tables/a.csv has 'tset' in the split column 'part'",
            "train, validation or test",
        ],
    ),
    "nothing for a split": (
        {"a.csv": A | {"part": ["train", None] * 15}},
        {"split": "part"},
        ["row 2 of tables/a.csv has no value in the split column 'part'"],
    ),
    "no training rows": (
        {"a.csv": A | {"part": ["train"] * 30}, "b.csv": B | {"part": ["test"] * 24}},
        {"split": "part"},
        ["tables/b.csv has no row to train on", "part = train"],
    ),
    "another number of clients": (PAIR, {"clients": 3}, ["clients = 3", "2 clients"]),
    "a folder dealt out": (PAIR, {"partition": "iid", "clients": 2}, ["partition = 'iid'"]),
    "a folder with a client column": (PAIR, {"client": "job"}, ['client = "job"', "folder"]),
    "one table and no client": (
        {"a.csv": A},
        {"path": "tables/a.csv"},
        ['client = "..."', 'partition = "iid"'],
    ),
    "no such client column": (
        {"a.csv": A},
        {"path": "tables/a.csv", "client": "jop"},
        ["tables/a.csv has no column 'jop'", "mean 'job'?"],
    ),
    "a row of nobody": (
        {"a.csv": changed(A, "job", 4, None)},
        {"path": "tables/a.csv", "client": "job"},
        ["row 4 of tables/a.csv has no value in column 'job'"],
    ),
    "clients of dates": (
        {"a.csv": A | {"day": DAYS}},
        {"path": "tables/a.csv", "client": "day"},
        ["'day'", "cannot identify clients", "dates"],
    ),
    "clients of no rows": (
        {"a.csv": "age,job,ill\n"},
        {"path": "tables/a.csv", "client": "job"},
        ["tables/a.csv", "no rows"],
    ),
    "clients that are protected": (
        {"a.csv": A},
        {"path": "tables/a.csv", "client": "sex"},
        ["'sex' identifies the clients"],
    ),
    "a client column and a partition": (
        {"a.csv": A},
        {"path": "tables/a.csv", "client": "job", "partition": "iid"},
        ["partition = 'iid'"],
    ),
    "more clients than rows": (
        {"a.csv": A},
        {"path": "tables/a.csv", "partition": "iid", "clients": 4},
        ["4 clients", "40 rows", "there are 30"],
    ),
    "no rows to deal out": (
        {"a.csv": "age,sex,ill\n"},
        {"path": "tables/a.csv", "partition": "iid", "clients": 4},
        ["tables/a.csv", "no rows"],
    ),
}


@pytest.mark.parametrize(("files", "data", "words"), CASES.values(), ids=list(CASES))
def test_it_is_said_what_is_wrong_and_where(refused, files, data, words):
    sentence = refused(files, **(BASE | data))
    for word in words:
        assert word in sentence, sentence


def test_the_real_program_says_it_and_gives_code_2(refused):
    files, data, words = CASES["a short line"]
    sentence = refused(files, real=True, **(BASE | data))
    for word in words:
        assert word in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["c.csv", "c.parquet", "c.csv.gz"])
def test_a_file_that_may_not_be_read_is_named(refused, place, name):
    folder(place / "tables", PAIR | {name: A})
    (place / "tables" / name).chmod(0)
    sentence = refused({}, **BASE)
    assert f"tables/{name} cannot be read" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_looked_into_is_named(refused, place):
    folder(place / "tables", PAIR)
    (place / "tables").chmod(0)
    try:
        assert "'tables' cannot be opened" in refused({}, **BASE)
    finally:
        (place / "tables").chmod(0o700)


def test_a_table_that_is_wrong_in_memory_is_refused_alike():
    from isonomy.data.arrow_values import frame_of
    from isonomy.data.dataset import Request
    from isonomy.data.partition import PARTITIONS
    from isonomy.data.tables import Roles, federate
    from isonomy.errors import DataError

    options = {"minimum": 1}
    request = Request(2, 0, PARTITIONS["iid"], options, {})
    table = pa.table(A | {"day": [dt.date(2020, 1, 1)] * 30})
    with pytest.raises(DataError, match="label 'day' contains dates"):
        federate(frame_of(table), Roles(label="day"), request, source="mine")
    wrong = pa.table(changed(A, "score", 3, np.inf))
    with pytest.raises(
        DataError, match="'score' of the table contains an infinite number in row 3"
    ):
        federate(frame_of(wrong), Roles(label="ill"), request, source="mine")
