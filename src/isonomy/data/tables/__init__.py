"""Tables: from files with a label and protected columns to a federation.

`files` reads CSV and Parquet into `columns`, and `roles` is what the user says of them. `phases`
is the client's half of the preparation and `fit` the server's, which sees only what clients reply;
the outcome is a `preprocessing`. `federate` is the whole way. `sample`, `seen`, `words` and `guess`
are a first look at tables, from which `isonomy init` writes a config.
"""

from isonomy.data.tables.federate import federate, own
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.data.tables.roles import Roles

__all__ = ["Preprocessing", "Roles", "federate", "own"]
