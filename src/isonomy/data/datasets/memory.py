"""Data from memory: frames, arrow tables, tensors, torch and Hugging Face data sets.

Made with `isonomy.federation(...)` or `Federation.from_tensors(...)` and given to a run as
`isonomy.run(config, data=...)`. The options are those of your own tables, apart from the ones about
files. The config holds a digest of the data, so that a run is resumed with the same data only.
"""

from __future__ import annotations

from isonomy.data import memory
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation
from isonomy.data.frames import CLIENTS
from isonomy.data.tables.options import IN_MEMORY, WITH_OWN
from isonomy.errors import ConfigError


def load(request: Request) -> Federation:
    """Find the data by their digest and prepare them."""
    options = dict(request.options)
    digest = options.pop("digest")
    if not digest:
        raise ConfigError(
            "data.name = 'memory' is for data in Python; give them with isonomy.run(config, "
            "data=isonomy.federation(frame, label=...)), or set data.path to your files."
        )
    found = memory.find(digest)
    if not isinstance(found, Federation):
        return found.load(Request(**{**vars(request), "options": options}))
    changed = [name for name, value in options.items() if value != IN_MEMORY[name].default]
    if changed or request.clients or request.partition.function is not None:
        name = changed[0] if changed else "clients" if request.clients else "partition"
        raise ConfigError(
            f"data.{name} is set, but the data in memory are tensors, which are used as they are; "
            "remove it."
        )
    return found


DATASET = Dataset(
    name="memory",
    description="frames, tables or tensors in Python, given as isonomy.run(config, data=...)",
    source="data in memory",
    licence="yours",
    load=load,
    options=IN_MEMORY,
    protected=(),
    clients=CLIENTS,
    partition={"name": "own"},
    example='isonomy.run(config, data=isonomy.federation(frame, label="ill", client="site"))',
    partitions=WITH_OWN,
)
