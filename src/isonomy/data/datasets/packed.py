"""Packed data: a federation in files that are mapped into memory and not loaded.

`isonomy data pack` (or `isonomy.pack`) writes them once, with the data's preprocessing, splits and
clients. A run then uses the memory of the rows that it reads, so that a million clients, or data
larger than the memory, can be trained on, and the processes of a run share one copy. The seed of
the run has no effect on the data.
"""

from __future__ import annotations

from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation
from isonomy.data.packed import open_packed
from isonomy.data.partition import Partition
from isonomy.errors import ConfigError


def load(request: Request) -> Federation:
    """Map the files."""
    path = request.options["path"]
    if not path:
        raise ConfigError(
            "data.path is not set; give the folder that `isonomy data pack` has written."
        )
    if request.clients:
        raise ConfigError(
            "data.clients is set, but packed data have their own clients; remove it, or pack the "
            "data again with another number."
        )
    return open_packed(path)


DATASET = Dataset(
    name="packed",
    description="data that `isonomy data pack` has written, mapped into memory and not loaded",
    source="packed data",
    licence="yours",
    load=load,
    options={"path": Option("", "folder of the packed data")},
    protected=(),
    clients=10,  # not used: packed data have their own
    partition={"name": "own"},
    partitions={"own": Partition("own", "clients as they were packed", counts=True)},
    example='data = { name = "packed", path = "data/devices" }',
)
