"""Data in memory that runs of this process can use, found by their digest.

The config of a run on data in memory holds the digest and not the data, so that everything that
reads a config works as with files. Data are known as long as something else keeps them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from isonomy.data.federation import Federation
from isonomy.data.frames import Frames, without_roles
from isonomy.data.tables.federate import fingerprint
from isonomy.errors import ConfigError, DataError

NAME = "memory"  # of the data set
Data = Frames | Federation

_known: WeakValueDictionary[str, Frames | Federation] = WeakValueDictionary()
_kept: list[Data] = []  # in a process that makes a run for another one


def register(data: Any) -> dict[str, Any]:
    """Make data known to this process; returns the table `data` of a config that uses them."""
    if isinstance(data, Frames):
        _known[data.digest] = data
        return data.plain
    if isinstance(data, Federation):
        digest = fingerprint(data)
        _known[digest] = data
        return {"name": NAME, "digest": digest}
    raise without_roles(data)


def find(digest: str) -> Data:
    """Return the data with this digest; raises a DataError if they are not in this process."""
    found = _known.get(digest)
    if found is None:
        raise DataError(
            f"the run uses data from memory (digest {digest[:8] or 'missing'}), which this process "
            "does not have; make them again in Python with isonomy.federation(...) and give them "
            "as data=..., for example to isonomy.resume(folder, data=...)."
        )
    return found


def packed(tables: Iterable[Mapping[str, Any]]) -> bytes:
    """The data that the `data` tables of some configs name, for another process."""
    digests = {str(t.get("digest")) for t in tables if t.get("name") == NAME}
    return pickle.dumps([find(digest) for digest in sorted(digests)])


def unpack(content: bytes) -> None:
    """Make data from another process known here, for as long as this process lives."""
    for one in pickle.loads(content):
        register(one)
        _kept.append(one)


def refuse_roles(given: Mapping[str, Any]) -> None:
    """Raise a ConfigError if roles of columns are given for torch data sets, which have none."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name} = {value!r} is for tables, but the data are torch data sets, whose "
                "examples are (x, y) and whose clients are the dict's keys; remove it."
            )
