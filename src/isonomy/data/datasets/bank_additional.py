"""BANK-ADDITIONAL: the calls of BANK with economic indicators of those months.

Moro, Cortez and Rita (2014), UCI Machine Learning Repository, https://doi.org/10.24432/C5K306,
file `bank-additional-full.csv` of `bank-additional.zip`: 41,188 rows, May 2008 to November 2010.
The downloaded copy has commas where the original has semicolons; both are read.

Our choices are those of BANK, except that "unknown" is a missing value, as documented for this
file, and that `pdays` = 999 means no earlier campaign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from isonomy.core.options import Option
from isonomy.data import public_tables
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import PARTITIONS
from isonomy.data.public_tables import Table, count, numbers, one_of, replaced

FILES = (
    (
        fetch.File(
            "bank-additional.csv",
            "58a6872c9bcd37e40e8bec02a71a7dc78cc17d84e032528ef9fbf92301fc46d1",
            4_953_230,
            (fetch.Package("equiaudit", "0.1.2", "equiaudit/data/bank-additional.csv"),),
        ),
    ),
)

NUMBERS = (
    "age",
    "duration",
    "campaign",
    "pdays",
    "previous",
    "emp.var.rate",
    "cons.price.idx",
    "cons.conf.idx",
    "euribor3m",
    "nr.employed",
)
COLUMNS = (
    "age",
    "job",
    "marital",
    "education",
    "default",
    "housing",
    "loan",
    "contact",
    "month",
    "day_of_week",
    "duration",
    "campaign",
    "pdays",
    "previous",
    "poutcome",
    "emp.var.rate",
    "cons.price.idx",
    "cons.conf.idx",
    "euribor3m",
    "nr.employed",
    "y",
)
LABELS = ("no", "yes")

BINS = {"age": (25, 61)}


def parse(paths: Sequence[Path]) -> Table:
    """Read the columns, separated by commas or semicolons."""
    (path,) = paths
    found, delimiter = public_tables.header("BANK-ADDITIONAL", path, COLUMNS)
    table = public_tables.read(
        "BANK-ADDITIONAL",
        path,
        found,
        NUMBERS,
        skip=1,
        delimiter=delimiter,
        wanted=COLUMNS,
        missing=("unknown",),
    )
    one_of("BANK-ADDITIONAL", table, "y", LABELS)
    return table


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    age = numbers(table, "age")
    return [
        Fact("rows", len(table), 41_188),
        Fact("rows with yes", count(table, "y", "yes"), 4_640),
        Fact("rows without unknown values", public_tables.complete(table), 30_488),
        Fact("people of 25 to 60", int(((age >= 25) & (age <= 60)).sum()), 39_210),
    ]


def load(request: Request) -> Federation:
    """Download, check and prepare the data."""
    table, origin = public_tables.obtain("BANK-ADDITIONAL", FILES, parse, _facts, request)
    return replace(federate(table, request), origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table."""
    from isonomy.data import tables

    days = numbers(table, "pdays")
    table = replaced(table, "pdays", np.where(days == 999, np.nan, days))
    drop = () if request.options["duration"] else ("duration",)
    roles = public_tables.roles(request, "y", "yes", bins=BINS, drop=drop, indicate=True)
    notes = ["pdays is missing if there was no earlier campaign."]
    if drop:
        notes.append("duration is not used: it is known only after the outcome.")
    made = tables.federate(table, roles, request, source=DATASET.source, notes=tuple(notes))
    words = [name for name in COLUMNS if name not in (*NUMBERS, "y")]
    unknown = [{"name": name, "gone": ("unknown",)} for name in words]
    return public_tables.read_as(made, {"name": "pdays", "gone": ("999",)}, *unknown)


DATASET = Dataset(
    name="bank_additional",
    description="41,188 calls of a Portuguese bank, with economic indicators; term deposit?",
    source="BANK, bank-additional-full.csv, UCI Machine Learning Repository (Moro et al., 2014)",
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
    partitions=PARTITIONS,
    files=FILES,
    facts=facts,
)
