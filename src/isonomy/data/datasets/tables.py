"""Your own tables: CSV or Parquet, one file per client, or one file with a client column.

You name the label, the protected columns and anything else you know about the columns; the rest is
found from the data. The preprocessing is fitted as in a real federation: every client reports
counts, sums and sets of values of its training rows, and no row leaves it. Missing numbers are
replaced by the mean and numbers are standardised. Categories become indicators, with one for all
rare or unknown values ("other"). The fitted preprocessing is saved with the model.
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
    """Read the tables, agree on the columns, fit the preprocessing and apply it."""
    options = dict(request.options)
    path, client = options.pop("path"), options.pop("client")
    fractions, encoding = options.pop("fractions"), options.pop("encoding")
    exclude = options.pop("exclude")
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
        exclude=exclude,
    )


DATASET = Dataset(
    name="tables",
    description="your own CSV or Parquet files, one per client or one with a client column",
    source="own tables",
    licence="yours",
    load=load,
    options={
        "path": Option("", "a folder (each file is one client) or one file"),
        "exclude": Option((), "files of the folder that are not tables of clients"),
        "label": Option("", "the column to predict"),
        "protected": Option((), "protected columns, or intersections such as 'sex*race'"),
        "bins": Option(
            {}, "groups of protected numbers: edges {age = [25, 60]}, or a number {age = 4}"
        ),
        "client": Option("", "the column that identifies clients, if data.path is one file"),
        "positive": Option("", "the label that becomes class 1 (default: the last in order)"),
        "task": Option("auto", "classification, regression, or auto: by the label's values"),
        "features": Option((), "the columns to predict from (default: all others)"),
        "drop": Option((), "columns that are not used, such as identifiers"),
        "keep_protected": Option(False, "whether protected columns are also used as features"),
        "numeric": Option((), "columns that must contain numbers"),
        "categorical": Option((), "columns whose numbers are codes of categories"),
        "split": Option("", "the column that contains train, validation or test"),
        "fractions": Option(FRACTIONS, "shares of rows for train, validation, test, without split"),
        "missing": Option(MISSING, "texts that mean a missing value"),
        "impute": Option("mean", "what replaces missing numbers: mean, median or zero"),
        "indicate": Option(False, "whether to add a feature that marks missing numbers"),
        "scale": Option("standard", "scaling of numbers: standard, minmax or none"),
        "rare": Option(10, "categories with fewer training rows in total become 'other'"),
        "encoding": Option("utf-8", "the encoding of CSV files"),
    },
    protected=(),
    clients=10,
    partition={"name": "own"},
    example='data = { path = "hospitals", label = "readmitted", protected = ["sex"] }',
    partitions={
        "own": Partition("own", "clients as in the tables", counts=True),
        **PARTITIONS,
    },
)
