"""Your own tables: CSV or Parquet, one file for each client, or one file with a client column.

The label, the protected columns and what else is known of the columns are named here; the rest is
found from the data. How rows become features is fitted as a real federation would do it: every
client reports counts, sums and sets of values of its training rows, and no row leaves it. Numbers
are filled with the mean where they are missing and standardised; categories become indicators,
with one for all rare or unknown values ("other"). The fitted preprocessing is kept with the model.
"""

from __future__ import annotations

from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS, PARTITIONS, Partition
from isonomy.data.tables.columns import MISSING
from isonomy.data.tables.federate import own
from isonomy.data.tables.roles import Roles


def load(request: Request) -> Federation:
    """Read, agree on the columns, fit, prepare."""
    options = dict(request.options)
    path, client = options.pop("path"), options.pop("client")
    fractions, encoding = options.pop("fractions"), options.pop("encoding")
    return own(
        path,
        Roles(**options),
        client=client,
        partition=request.partition,
        partition_options=request.partition_options,
        clients=request.clients,
        seed=request.seed,
        fractions=fractions,
        encoding=encoding,
    )


DATASET = Dataset(
    name="tables",
    description="your own CSV or Parquet files, one for each client or one with a client column",
    source="own tables",
    licence="yours",
    load=load,
    options={
        "path": Option("", "a folder (each file is a client) or one file"),
        "label": Option("", "the column to be predicted"),
        "protected": Option((), "protected columns, or intersections such as 'sex*race'"),
        "bins": Option(
            {}, "where protected numbers are cut: {age = [25, 60]}, or {age = 4} groups"
        ),
        "client": Option("", "the column that tells clients apart, in one file"),
        "positive": Option("", "the label that is class 1 (the last in order if left out)"),
        "task": Option("auto", "classification, regression, or auto: by the label's values"),
        "features": Option((), "the columns to predict from (all others if left out)"),
        "drop": Option((), "columns to leave out, such as identifiers"),
        "keep_protected": Option(False, "whether the protected columns are features too"),
        "numeric": Option((), "columns that have to hold numbers"),
        "categorical": Option((), "columns whose numbers are codes of categories"),
        "split": Option("", "the column that says train, validation or test"),
        "fractions": Option(FRACTIONS, "else shares of a client's rows to train, validate, test"),
        "missing": Option(MISSING, "texts that stand for a missing value"),
        "impute": Option("mean", "what missing numbers become: mean, median or zero"),
        "indicate": Option(False, "whether a feature tells where a number was missing"),
        "scale": Option("standard", "numbers' scale: standard, minmax or none"),
        "rare": Option(10, "categories with fewer training rows in all become 'other'"),
        "encoding": Option("utf-8", "what CSV files are written in"),
    },
    protected=(),
    clients=10,
    partition={"name": "own"},
    example='data = { path = "hospitals", label = "readmitted", protected = ["sex"] }',
    partitions={
        "own": Partition("own", "clients as the tables have them", counts=True),
        **PARTITIONS,
    },
)
