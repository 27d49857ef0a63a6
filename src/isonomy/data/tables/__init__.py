"""Tables: from files with a label and protected columns to a federation.

Reading: `files` (with `csv_files` and `parquet_files`) reads tables into `columns`; `sources` holds
the tables of all clients; `roles` is what the user states about the columns.

Preparation: `phases` is the client side; `agreement`, `quantiles` and `fit` are the server side,
which sees only what clients reply. The outcome is a `preprocessing`. `federate` runs all of it.

First config: `sample` reads parts of tables, `column_profile` summarises columns, `guess` (with
`guess_label`, `guess_columns`, `guess_doubts` and `name_hints`) guesses their roles, and
`first_config` writes them as TOML for `isonomy init`.
"""

from isonomy.data.tables.federate import federate, own
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.data.tables.roles import Roles

__all__ = ["Preprocessing", "Roles", "federate", "own"]
