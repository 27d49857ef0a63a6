"""ADULT: does a person earn more than 50,000 dollars a year? From the US census of 1994.

Becker and Kohavi (1996), UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20. All
48,842 rows are pooled, assigned to clients and then split at each client, so the official split
into training and test rows is not used.

Our choices: the label is 1 for >50K. "?" is a missing value, as documented in `adult.names`.
`fnlwgt` is not used: it is the number of people that a row represents, not a property of the
person. Protected columns are not used as features unless `keep_protected` is true. Scales and
categories are fitted on training rows only.

With `partition = "paper"` (see `isonomy.data.fedfb_preparation`) the official training and test
rows are used as such, fnlwgt is a feature, "?" is a category like others, and there are two
clients: the first has a random 80 % of those who work for a private employer and 20 % of the rest,
the second has all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from isonomy.core.examples import Attribute
from isonomy.core.values import Coded, joined
from isonomy.data import fedfb_preparation, public_tables
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import PARTITIONS, Integers
from isonomy.data.public_tables import Table, count, one_of, replaced, words

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_TRAIN = fetch.File(
    "adult.data",
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    3_974_305,
    (
        fetch.Url(_UCI + "adult.data"),
        fetch.Package("visual_auditor", "0.1.3", "visual_auditor/data/adult.data"),
    ),
)
_TEST = fetch.File(
    "adult.test",
    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    2_003_153,
    (
        fetch.Url(_UCI + "adult.test"),
        fetch.Package("visual_auditor", "0.1.3", "visual_auditor/data/adult.test"),
    ),
)
_ALL = fetch.File(
    "adult-all.csv",
    "2e67f2fa2dfa4dff47998a8c11432b3999b89c94b0b76f826602d41714a30c1f",
    5_326_381,
    (fetch.Package("equiaudit", "0.1.2", "equiaudit/data/adult-all.csv"),),
)
FILES = ((_TRAIN, _TEST), (_ALL,))  # alternatives with the same rows in the same order

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
LABELS = ("<=50K", ">50K")
TWINS = {"education": "education-num", "education-num": "education"}

BINS = {"age": (25, 61)}


def parse(paths: Sequence[Path]) -> Table:
    """Read and concatenate the files, in the original format or with a header.

    The original has no header, a space after every comma, and in `adult.test` a first line to
    skip and a full stop after the label.
    """
    tables = []
    for path in paths:
        skip = 0 if public_tables.first_line(path)[:1].isdigit() else 1
        tables.append(
            public_tables.read("ADULT", path, COLUMNS, NUMBERS, skip=skip, missing=("?",))
        )
    table = joined(tables)
    income = table["income"]
    assert isinstance(income, Coded)  # a column of words
    table = table.having("income", income.mapped([word.rstrip(".") for word in income.texts]))
    one_of("ADULT", table, "income", LABELS)
    return table


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    return [
        Fact("rows", len(table), 48_842),
        Fact("rows with >50K", count(table, "income", ">50K"), 11_687),
        Fact("men", count(table, "sex", "Male"), 32_650),
        Fact("women", count(table, "sex", "Female"), 16_192),
        Fact("rows with race White", count(table, "race", "White"), 41_762),
        Fact("rows with race Black", count(table, "race", "Black"), 4_685),
        Fact("rows without '?'", public_tables.complete(table), 45_222),
    ]


def load(request: Request) -> Federation:
    """Download, check, and prepare the data, in our way or that of the papers."""
    fixed = fedfb_preparation.wanted(request, DATASET, 2)
    table, origin = public_tables.obtain("ADULT", FILES, parse, _facts, request)
    made = paper(table) if fixed else federate(table, request)
    return replace(made, origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table in our way."""
    from isonomy.data import tables

    roles = public_tables.roles(request, "income", ">50K", bins=BINS, drop=("fnlwgt",), twins=TWINS)
    notes = ["fnlwgt is not used: it is a sampling weight."]
    if "sex" in roles.protected_columns and not roles.keep_protected:
        notes.append("relationship (Husband, Wife) still reveals the sex in many rows.")
    return tables.federate(table, roles, request, source=DATASET.source, notes=tuple(notes))


ORDER = 226_143_858_641_484  # see fedfb_preparation.in_order
TRAINING = 32_561  # rows of adult.data
PAPER_CATEGORIES = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "native-country",
)


def paper(table: Table) -> Federation:
    """Build the two clients of FedFB and HetPFL; training and test rows are scaled separately."""
    fedfb_preparation.in_order("ADULT", public_tables.numbers(table, "fnlwgt"), ORDER)
    for name in PAPER_CATEGORIES:
        table = replaced(table, name, [word or "?" for word in words(table, name)])
    y = (words(table, "income") == ">50K").astype(np.int64)
    z = (words(table, "sex") == "Male").astype(np.int64)
    train, test = table.take(slice(TRAINING)), table.take(slice(TRAINING, None))
    known = fedfb_preparation.levels(train, PAPER_CATEGORIES)
    x, names = fedfb_preparation.encode(train, NUMBERS, known, z[:TRAINING])
    x_test, _ = fedfb_preparation.encode(test, NUMBERS, known, z[TRAINING:])
    private = words(table, "workclass") == "Private"
    stream = np.random.RandomState(1)
    trains = _clients(stream, private[:TRAINING])
    tests = [TRAINING + mine for mine in _clients(stream, private[TRAINING:])]
    return fedfb_preparation.federation(
        np.concatenate([x, x_test]),
        y,
        z,
        fedfb_preparation.cut(trains, tests),
        attribute=Attribute("sex", ("Female", "Male")),
        labels=LABELS,
        features=names,
        source=DATASET.source,
        preprocessing=fedfb_preparation.prepared(
            train,
            NUMBERS,
            known,
            {"sex": {"values": {"Male": 1}}},
            ("income", LABELS),
            gone="?",
        ),
        fault="training rows and test rows are scaled separately",
    )


def _clients(stream: np.random.RandomState, private: np.ndarray) -> list[Integers]:
    """Return a random 80 % of the private and 20 % of the rest, and all others in order."""
    drawn = [
        stream.choice(rows, int(share * len(rows)), replace=False)
        for rows, share in ((np.flatnonzero(private), 0.8), (np.flatnonzero(~private), 0.2))
    ]
    first = np.concatenate(drawn)
    return [first, np.setdiff1d(np.arange(len(private)), first)]


DATASET = Dataset(
    name="adult",
    description="48,842 people of the 1994 US census; does a person earn more than $50,000?",
    source="ADULT, UCI Machine Learning Repository (Becker and Kohavi, 1996)",
    licence="CC BY 4.0",
    load=load,
    options=public_tables.options(("sex",), BINS),
    protected=("sex",),
    clients=10,
    partition={"name": "uneven"},
    partitions={
        **PARTITIONS,
        "paper": fedfb_preparation.partition(
            "two clients, one mostly with private employees, one mostly with others"
        ),
    },
    files=FILES,
    facts=facts,
)
