"""Your own tables: CSV or Parquet, one file per client, or one file with a client column.

You name the label, the protected columns and anything else you know about the columns; the rest is
found from the data. The preprocessing is fitted as in a real federation: every client reports
counts, sums and sets of values of its training rows, and no row leaves it. Missing numbers are
replaced by the mean and numbers are standardised. Categories become indicators, with one for all
rare or unknown values ("other"). The fitted preprocessing is saved with the model.
"""

from __future__ import annotations

from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation
from isonomy.data.tables.federate import own
from isonomy.data.tables.options import OPTIONS, WITH_OWN
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
        fit=request.fit,
    )


DATASET = Dataset(
    name="tables",
    description="your own CSV or Parquet files, one per client or one with a client column",
    source="own tables",
    licence="yours",
    load=load,
    options=OPTIONS,
    protected=(),
    clients=10,
    partition={"name": "own"},
    example='data = { path = "hospitals", label = "readmitted", protected = ["sex"] }',
    partitions=WITH_OWN,
)
