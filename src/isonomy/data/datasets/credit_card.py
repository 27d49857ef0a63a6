"""CREDIT CARD: does a person default next month? 30,000 clients of a bank in Taiwan, 2005.

Yeh and Lien (2009), UCI Machine Learning Repository, Default of Credit Card Clients,
https://doi.org/10.24432/C55S3H. The original is a spreadsheet; the downloaded file is the
same table as CSV, as distributed on Kaggle.

Our choices: the label is 1 for default. The codes of SEX, EDUCATION and MARRIAGE are replaced
by words; the codes 0, 5 and 6, which the documentation does not explain, are kept as separate
values. PAY_0 to PAY_6 (months of delay, and -2, -1, 0 for no delay) are used as numbers. ID is not
used. SEX is protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from isonomy.data import public_tables
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import PARTITIONS
from isonomy.data.public_tables import Table, count, numbers, replaced

FILES = (
    (
        fetch.File(
            "UCI_Credit_Card.csv",
            "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1",
            2_862_995,
            (fetch.Package("equiaudit", "0.1.2", "equiaudit/data/UCI_Credit_Card.csv"),),
        ),
    ),
)

DELAYS = tuple(f"PAY_{k}" for k in (0, 2, 3, 4, 5, 6))
BILLS = tuple(f"BILL_AMT{k}" for k in range(1, 7))
PAID = tuple(f"PAY_AMT{k}" for k in range(1, 7))
LABEL = "default.payment.next.month"
COLUMNS = (
    "ID",
    "LIMIT_BAL",
    "SEX",
    "EDUCATION",
    "MARRIAGE",
    "AGE",
    *DELAYS,
    *BILLS,
    *PAID,
    LABEL,
)
CODES = {
    "SEX": {1: "male", 2: "female"},
    "EDUCATION": {1: "graduate school", 2: "university", 3: "high school", 4: "others"},
    "MARRIAGE": {1: "married", 2: "single", 3: "others"},
    LABEL: {0: "paid", 1: "default"},
}

BINS = {"AGE": (25, 61)}


def parse(paths: Sequence[Path]) -> Table:
    """Read the columns and replace codes by words."""
    (path,) = paths
    found, delimiter = public_tables.header("CREDIT CARD", path, COLUMNS)
    table = public_tables.read(
        "CREDIT CARD", path, found, COLUMNS, skip=1, delimiter=delimiter, wanted=COLUMNS
    )
    for name, meaning in CODES.items():
        codes = numbers(table, name).astype(np.int64).tolist()
        table = replaced(table, name, [meaning.get(code, f"code {code}") for code in codes])
    for name in ("SEX", LABEL):
        public_tables.one_of("CREDIT CARD", table, name, tuple(CODES[name].values()))
    return table


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    return [
        Fact("rows", len(table), 30_000),
        Fact("defaults", count(table, LABEL, "default"), 6_636),
        Fact("women", count(table, "SEX", "female"), 18_112),
        Fact("men", count(table, "SEX", "male"), 11_888),
        Fact("people from a university", count(table, "EDUCATION", "university"), 14_030),
    ]


def load(request: Request) -> Federation:
    """Download, check and prepare the data."""
    table, origin = public_tables.obtain("CREDIT CARD", FILES, parse, _facts, request)
    return replace(federate(table, request), origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table."""
    from isonomy.data import tables

    roles = public_tables.roles(request, LABEL, "default", bins=BINS, drop=("ID",))
    notes = ("The positive class is default, an unfavourable outcome.",)
    made = tables.federate(table, roles, request, source=DATASET.source, notes=notes)
    return public_tables.read_as(made, *({"name": n, "values": _meanings(n)} for n in CODES))


def _meanings(name: str) -> dict[str, str]:
    """Return the meanings of a column's codes, including those that are not documented."""
    return {str(code): CODES[name].get(code, f"code {code}") for code in range(10)}


DATASET = Dataset(
    name="credit_card",
    description="30,000 credit card clients of a bank in Taiwan; does a person default next month?",
    source="CREDIT CARD, Default of Credit Card Clients, UCI Machine Learning Repository "
    "(Yeh and Lien, 2009)",
    licence="CC BY 4.0",
    load=load,
    options=public_tables.options(("SEX",), BINS),
    protected=("SEX",),
    clients=10,
    partition={"name": "uneven"},
    partitions=PARTITIONS,
    files=FILES,
    facts=facts,
)
