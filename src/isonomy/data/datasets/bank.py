"""BANK: does a person called by a Portuguese bank subscribe to a term deposit? 2008 to 2010.

Moro, Rita and Cortez (2014), UCI Machine Learning Repository, https://doi.org/10.24432/C5K306,
file `bank-full.csv` of `bank.zip`: 45,211 rows. The downloaded copy has commas where the
original has semicolons; both are read.

Our choices: the label is 1 for "yes". "unknown" is a category, because the documentation
lists it among the values. `duration` is not used unless `duration` is true: the length of the call
is known only after its outcome, and a call of length 0 is never successful. `pdays` = -1 means that
there was no earlier campaign: it counts as missing, and a feature marks it. Age is the protected
attribute, in three groups: below 25, 25 to 60, above 60.

With `partition = "paper"` (see `isonomy.data.fedfb_preparation`) the group is age in fifths,
duration is a feature and day and month are not, the rows are shuffled and the first 70 % are
training rows, and there are three clients by whether a person has a loan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from isonomy.core.examples import Attribute
from isonomy.core.options import Option
from isonomy.data import fedfb_preparation, public_tables
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import PARTITIONS, Integers
from isonomy.data.public_tables import Table, count, numbers, one_of, replaced, words

FILES = (
    (
        fetch.File(
            "bank-full.csv.gz",
            "455eeb37c77daff603109318052ae5af575e111615c3b98b4a477ca9a9f1316d",
            495_724,
            (fetch.Package("mlba", "2.0.5", "mlba/csvFiles/Bank-bias-data.csv.gz"),),
        ),
    ),
)

NUMBERS = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
COLUMNS = (
    "age",
    "job",
    "marital",
    "education",
    "default",
    "balance",
    "housing",
    "loan",
    "contact",
    "day",
    "month",
    "duration",
    "campaign",
    "pdays",
    "previous",
    "poutcome",
    "y",
)
LABELS = ("no", "yes")

BINS = {"age": (25, 61)}


def parse(paths: Sequence[Path]) -> Table:
    """Read the columns, separated by commas or semicolons."""
    (path,) = paths
    found, delimiter = public_tables.header("BANK", path, COLUMNS)
    table = public_tables.read(
        "BANK", path, found, NUMBERS, skip=1, delimiter=delimiter, wanted=COLUMNS
    )
    one_of("BANK", table, "y", LABELS)
    return table


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    age = numbers(table, "age")
    return [
        Fact("rows", len(table), 45_211),
        Fact("rows with yes", count(table, "y", "yes"), 5_289),
        Fact("married people", count(table, "marital", "married"), 27_214),
        Fact("single people", count(table, "marital", "single"), 12_790),
        Fact("divorced people", count(table, "marital", "divorced"), 5_207),
        Fact("people of 25 to 60", int(((age >= 25) & (age <= 60)).sum()), 43_214),
    ]


def load(request: Request) -> Federation:
    """Download, check, and prepare the data, in our way or that of the papers."""
    fixed = fedfb_preparation.wanted(request, DATASET, 3)
    table, origin = public_tables.obtain("BANK", FILES, parse, _facts, request)
    made = paper(table) if fixed else federate(table, request)
    return replace(made, origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table in our way."""
    from isonomy.data import tables

    days = numbers(table, "pdays")
    table = replaced(table, "pdays", np.where(days < 0, np.nan, days))
    drop = () if request.options["duration"] else ("duration",)
    roles = public_tables.roles(request, "y", "yes", bins=BINS, drop=drop, indicate=True)
    notes = ["pdays is missing if there was no earlier campaign."]
    if drop:
        notes.append("duration is not used: it is known only after the outcome.")
    made = tables.federate(table, roles, request, source=DATASET.source, notes=tuple(notes))
    return public_tables.read_as(made, {"name": "pdays", "below": 0})


PAPER_CATEGORIES = (
    "job",
    "marital",
    "education",
    "default",
    "housing",
    "loan",
    "contact",
    "poutcome",
)
PAPER_NUMBERS = ("balance", "duration", "campaign", "pdays", "previous")
ORDER = 41_930_405_389  # see fedfb_preparation.in_order
PAPER_SHARES = (
    (0.5, 0.2),
    (0.6, 0.8),
)  # shares of no loan and of loan at which a client's rows end


def paper(table: Table) -> Federation:
    """Build FedFB's and HetPFL's clients: 50, 10, 40 % of no loan, 20, 60, 20 % of loan."""
    fedfb_preparation.in_order("BANK", numbers(table, "age"), ORDER)
    stream = np.random.RandomState(1)
    age = numbers(table, "age")
    edges = np.quantile(age, (0.2, 0.4, 0.6, 0.8))
    z = np.searchsorted(edges, age).astype(np.int64)
    known = fedfb_preparation.levels(table, PAPER_CATEGORIES)
    x, names = fedfb_preparation.encode(table, PAPER_NUMBERS, known, z)
    y = (words(table, "y") == "yes").astype(np.int64)
    order = stream.permutation(len(x))
    training, loan = int(0.7 * len(x)), words(table, "loan") == "yes"
    trains = _clients(loan, order[:training])
    for mine in trains:
        stream.shuffle(mine)
    return fedfb_preparation.federation(
        x,
        y,
        z,
        fedfb_preparation.cut(trains, _clients(loan, order[training:])),
        attribute=Attribute("age", tuple(f"fifth {k}" for k in range(1, 6))),
        labels=LABELS,
        features=names,
        source=DATASET.source,
        preprocessing=fedfb_preparation.prepared(
            table, PAPER_NUMBERS, known, {"age": {"edges": tuple(edges.tolist())}}, ("y", LABELS)
        ),
    )


def _clients(loan: np.ndarray, rows: Integers) -> list[Integers]:
    """Return each client's rows: a range of those without a loan, then one of those with."""
    without, having = rows[~loan[rows]], rows[loan[rows]]
    ends = ((0, 0), *PAPER_SHARES, (1, 1))
    return [
        np.concatenate(
            [
                without[int(len(without) * a) : int(len(without) * b)],
                having[int(len(having) * c) : int(len(having) * d)],
            ]
        )
        for (a, c), (b, d) in pairwise(ends)
    ]


DATASET = Dataset(
    name="bank",
    description="45,211 calls of a Portuguese bank; does a person subscribe to a term deposit?",
    source="BANK, bank-full.csv, UCI Machine Learning Repository (Moro et al., 2014)",
    licence="CC BY 4.0",
    load=load,
    options=public_tables.options(
        ("age",),
        BINS,
        duration=Option(
            False, "whether to use the duration of the call, which leaks the label, as a feature"
        ),
    ),
    protected=("age",),
    clients=10,
    partition={"name": "uneven"},
    partitions={
        **PARTITIONS,
        "paper": fedfb_preparation.partition("three clients by loan"),
    },
    files=FILES,
    facts=facts,
)
