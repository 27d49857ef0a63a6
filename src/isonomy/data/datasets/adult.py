"""ADULT: who earns more than 50,000 dollars a year, from the US census of 1994.

Becker and Kohavi (1996), UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20. All
48,842 rows are pooled, given to clients and then split at each client, so the official division
into training and test rows is not used.

Our choices: the label is 1 for >50K. A missing value ("?") is a category of its own. `fnlwgt` is
left out: it says how many people a row stands for, not anything about the person. Protected
columns are no features unless `keep_protected` is true. Numbers are standardised with the
training rows' mean and standard deviation; categories become indicators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from isonomy.data import fetch
from isonomy.data.datasets.base import Dataset, Fact, Request, insist
from isonomy.data.federation import Federation, build
from isonomy.data.options import Option
from isonomy.data.partition import FRACTIONS, PARTITIONS, Categories, Rows, allocate
from isonomy.data.table import Column, categories, encode, protect, read_csv
from isonomy.errors import DataError

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
FILES = ((_TRAIN, _TEST), (_ALL,))  # the same rows in the same order, whichever is had

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


def parse(paths: Sequence[Path]) -> dict[str, Column]:
    """The columns of the files one after the other, whether in the original form or with a header.

    The original has no header, a space after every comma, and in `adult.test` a first line to
    skip and a full stop after the label.
    """
    skip = []
    for path in paths:
        try:
            with path.open("rb") as stream:
                skip.append(0 if stream.readline(200).lstrip()[:1].isdigit() else 1)
        except OSError as error:
            raise DataError(f"cannot read {path} ({error.strerror}); check the path.") from error
    columns = read_csv("ADULT", paths, COLUMNS, NUMBERS, skip)
    income = categories(columns, "income")
    words = [level.rstrip(".") for level in income.levels]
    if not set(words) <= set(LABELS):
        raise DataError(
            f"ADULT's income is {' or '.join(words[:4])} in this file; it has to be <=50K or "
            ">50K, so get a whole copy."
        )
    codes = np.array([LABELS.index(word) for word in words], dtype=np.int64)
    return columns | {"income": Categories(codes[income.codes], LABELS)}


def facts(paths: Sequence[Path]) -> list[Fact]:
    """What is true of the whole data set."""
    return _facts(parse(paths))


def _facts(columns: dict[str, Column]) -> list[Fact]:
    known = np.ones(len(columns["age"]), dtype=np.bool_)
    for column in columns.values():
        if isinstance(column, Categories) and "?" in column.levels:
            known &= column.codes != column.levels.index("?")
    sex, race = categories(columns, "sex"), categories(columns, "race")
    return [
        Fact("rows", len(known), 48_842),
        Fact("rows with >50K", categories(columns, "income").count(">50K"), 11_687),
        Fact("men", sex.count("Male"), 32_650),
        Fact("women", sex.count("Female"), 16_192),
        Fact("rows with race White", race.count("White"), 41_762),
        Fact("rows with race Black", race.count("Black"), 4_685),
        Fact("rows without '?'", int(known.sum()), 45_222),
    ]


def load(request: Request) -> Federation:
    """Fetch, check, partition, split, encode."""
    options = request.options
    if options["path"]:
        columns, origin = parse([Path(options["path"]).expanduser()]), "the file given"
    else:
        files = fetch.fetch(*FILES, progress=request.progress)
        columns, origin = parse([file.path for file in files]), files[0].source
    insist("ADULT", _facts(columns))
    return replace(federate(columns, request), origin=origin)


def federate(columns: dict[str, Column], request: Request) -> Federation:
    """The federation of parsed columns."""
    income = categories(columns, "income")
    features = {
        name: column for name, column in columns.items() if name not in ("income", "fnlwgt")
    }
    wanted = request.options["protected"]
    groups, attributes, used = protect(features, wanted)
    rows = Rows(
        income.codes,
        groups[:, 0].numpy() if attributes else None,
        {name: column for name, column in features.items() if isinstance(column, Categories)},
    )
    parts, names = allocate(
        rows,
        request.partition,
        request.partition_options,
        request.clients,
        request.seed,
        request.options["fractions"],
    )
    if not request.options["keep_protected"]:
        features = {name: column for name, column in features.items() if name not in used}
    x, feature_names = encode(features, torch.cat(parts["train"]))
    notes = [
        "fnlwgt is left out: it is a sampling weight.",
        "Numbers are standardised by all clients' training rows.",
    ]
    if "sex" in used and not request.options["keep_protected"]:
        notes.append("relationship (Husband, Wife) still tells the sex of many rows.")
    return build(
        x,
        torch.from_numpy(income.codes),
        groups,
        parts,
        classes=2,
        attributes=attributes,
        names=names,
        labels=LABELS,
        features=feature_names,
        source=DATASET.source,
        notes=tuple(notes),
    )


DATASET = Dataset(
    name="adult",
    description="48,842 people of the 1994 US census; does a person earn more than $50,000?",
    source="ADULT, UCI Machine Learning Repository (Becker and Kohavi, 1996)",
    licence="CC BY 4.0",
    load=load,
    options={
        "protected": Option(
            ("sex",), "protected attributes: columns of categories, or intersections 'sex*race'"
        ),
        "keep_protected": Option(False, "whether the protected columns are features too"),
        "fractions": Option(FRACTIONS, "shares of a client's rows to train, validate and test"),
        "path": Option("", "a copy of the whole data set to read instead of fetching it"),
    },
    protected=("sex",),
    clients=10,
    partition={"name": "uneven"},
    partitions=PARTITIONS,
    files=FILES,
    facts=facts,
)
