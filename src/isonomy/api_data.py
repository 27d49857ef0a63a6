"""Data from memory for Python users.

Heavy imports are inside the functions, so that importing this module is fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isonomy.data.federation import Federation
    from isonomy.data.frames import Frames


def federation(
    data: Any,
    *,
    label: str | None = None,
    client: str | None = None,
    protected: Sequence[str] = (),
    partition: str | Mapping[str, Any] | None = None,
    clients: int | None = None,
    **options: Any,
) -> Frames | Federation:
    """Data from memory as a federation, to give to `run`, `compare`, `sweep`, `tune` or `decide`.

    `data` is one table with the rows of all clients, or a dict with one table per client. A table
    is a pandas or polars frame, a pyarrow table, anything else with arrow's stream interface, or a
    Hugging Face data set (with its splits, if it has several). A partitioner or FederatedDataset of
    flwr-datasets has one client per partition. Of one table, `client` names the column that
    identifies the clients, or a `partition` divides the rows among `clients` clients.

    `label`, `protected` and the `options` are those of your own files (`isonomy show tables`), and
    so are checks and preprocessing: the result of a run is the same, bit for bit.

    `data` may also be a dict with a torch data set per client, or one per client and split, whose
    examples are (x, y), followed by one group for each name in `protected`. They are used as they
    are; `options` are those of `Federation.from_tensors`.

    >>> import pyarrow
    >>> columns = {"age": [30, 41, 52, 63], "ill": ["no", "yes"] * 2, "at": list("aabb")}
    >>> data = federation(pyarrow.table(columns), label="ill", client="at", positive="yes")
    >>> data
    Frames(one table, 4 rows, label='ill')
    >>> data.federation(seed=0).names
    ('a', 'b')
    """
    from isonomy.data import memory
    from isonomy.data.federation import Federation
    from isonomy.data.frames import frames_of
    from isonomy.data.tensors import holds_datasets, stacked_datasets

    if holds_datasets(data):
        given = {"label": label, "client": client, "partition": partition, "clients": clients}
        memory.refuse_roles(given)
        stacked = stacked_datasets(data, [protected] if isinstance(protected, str) else protected)
        found = Federation.from_tensors(**stacked, **options)
        memory.register(found)
        return found
    made = frames_of(
        data,
        label=label,
        client=client,
        protected=protected,
        partition=partition,
        clients=clients,
        **options,
    )
    memory.register(made)
    made.federation()  # so that mistakes are found here
    return made


def pack(data: Any, folder: Path | str) -> Federation:
    """Write data to a new folder, from which runs map them into memory; see docs/many-clients.md.

    `data` is what `federation` returns, or an iterable of `Federation.from_tensors(...)` with some
    clients each, which are written one after the other. Use them with `data = {name = "packed",
    path = folder}`.

    >>> import tempfile, torch
    >>> from isonomy import Federation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = torch.randn(40, 3), torch.arange(40) % 2
    ...     halves = (Federation.from_tensors(x, y, [name] * 40) for name in ("a", "b"))
    ...     list(pack(halves, folder).names)
    ['a', 'b']
    """
    from isonomy.data.frames import Frames
    from isonomy.data.packed import pack as write

    return write(data.federation() if isinstance(data, Frames) else data, folder)


def data_table(data: Any) -> dict[str, Any]:
    """The table `data` of a config for data from memory, which are made known to this process."""
    from isonomy.data.memory import register

    return register(data)
