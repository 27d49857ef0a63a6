"""Tables in memory: pandas and polars frames, arrow tables, Hugging Face data sets.

Whatever was given is converted to arrow tables once. From there on everything is as for files: the
same checks, the same messages, the same preprocessing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isonomy.core.options import check
from isonomy.core.values import Frame
from isonomy.data.arrow_values import from_arrow, is_arrow, pyarrow
from isonomy.data.dataset import Request
from isonomy.data.federation import Federation
from isonomy.data.partition import plan
from isonomy.data.tables.columns import MISSING, Numbers, Other, Words, as_text
from isonomy.data.tables.csv_files import clean_names
from isonomy.data.tables.federate import Given, assigned
from isonomy.data.tables.files import OpenTable, ordered_names
from isonomy.data.tables.options import IN_MEMORY, WITH_OWN
from isonomy.data.tables.phases import part_of
from isonomy.data.tables.roles import Roles, listed
from isonomy.data.tables.sources import Opened
from isonomy.errors import ConfigError, DataError

__all__ = ["Frames", "frames_of", "to_arrow", "to_table"]

CLIENTS = 10  # of a partition, unless their number is given
KINDS = (
    "a pandas or polars frame, a pyarrow table, a Hugging Face data set, a dict with one of them "
    "per client, or a dict of torch data sets"
)


@dataclass(frozen=True, eq=False)
class Frames:
    """Tables in memory, and what their columns mean; made by `isonomy.federation`.

    Give it to `isonomy.run(config, data=...)` and the other functions that take data. As with
    files, each run splits and prepares the rows with its own seed; `federation(seed)` is what a run
    with that seed trains on. `digest` identifies the content.
    """

    tables: Mapping[str, Any]  # arrow tables or frames by client, or one with the key ""
    options: Mapping[str, Any]  # the table `data` of a config, without the digest
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", _digest(self.tables))

    @property
    def plain(self) -> dict[str, Any]:
        """The table `data` of the config of a run on these tables."""
        return {"name": "memory", "digest": self.digest, **self.options}

    def federation(self, seed: int = 0) -> Federation:
        """Return the examples as a run with this seed uses them."""
        options = dict(self.options)
        partition, clients = options.pop("partition", "own"), options.pop("clients", None)
        chosen, chosen_options = plan(partition, WITH_OWN)
        checked = check("data", "memory", IN_MEMORY, options)
        del checked["digest"]
        count = clients if clients is not None else 0 if chosen.counts else CLIENTS
        return self.load(Request(count, seed, chosen, chosen_options, checked))

    def load(self, request: Request) -> Federation:
        """Build the federation of a complete request."""
        options = dict(request.options)
        client, fractions = options.pop("client"), options.pop("fractions")
        roles = Roles(**options)
        alone = "" in self.tables
        place = {} if alone else {name: f"the table of '{name}'" for name in self.tables}
        opened = {
            name: _opened(table, place.get(name, "the table"), roles.missing)
            for name, table in self.tables.items()
        }
        given = Given(
            what="the data" if alone else "the dict",
            tables="the tables",
            each=lambda: None if alone else Opened(opened),
            whole=lambda: opened[""],
            are="has one table per client",
            instead="give one table",
        )
        return assigned(
            given,
            roles,
            client=client,
            partition=request.partition,
            partition_options=request.partition_options,
            clients=request.clients,
            seed=request.seed,
            fractions=fractions,
            source="tables in memory",
            fit=request.fit,
        )

    def __repr__(self) -> str:
        rows = sum(_shape(table)[1] for table in self.tables.values())
        names = list(self.tables)
        whose = "one table" if names == [""] else f"{len(names)} clients ({listed(names, 3)})"
        return f"Frames({whose}, {rows:,} rows, label={self.options.get('label')!r})"


def frames_of(data: Any, **options: Any) -> Frames:
    """Convert tables to arrow, name their options, and check everything that can be checked.

    `options` are those of the data set `memory`; see `isonomy.federation`.
    """
    known = {name: value for name, value in options.items() if value is not None}
    split, tables = _tables(data)
    if split and not known.get("split"):
        known["split"] = split
    return Frames(tables, {name: _plain(name, value) for name, value in known.items()})


def _plain(name: str, value: Any) -> Any:
    """An option as a config's TOML holds it; one name may stand for a list of one."""
    lists = ("protected", "features", "drop", "numeric", "categorical", "missing")
    if name in lists and isinstance(value, str):
        return [value]
    if name == "positive" and not isinstance(value, str):
        truth = isinstance(value, bool | np.bool_)
        return str(bool(value)).lower() if truth else as_text(float(value))
    if name == "bins":
        return {key: list(at) if isinstance(at, Sequence) else at for key, at in value.items()}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | list) else value


def _tables(data: Any) -> tuple[str, dict[str, Any]]:
    """Arrow tables by client, or one with the key "", and the column that holds their split."""
    if _is_partitioned(data):
        return _partitions(data)
    if _root(data) == "datasets" and isinstance(data, Mapping):  # splits of one data set
        split = "split"
        whole = {name: to_arrow(part, f"the split '{name}'") for name, part in data.items()}
        return split, {"": _with_splits(whole, split)}
    if not isinstance(data, Mapping):
        return "", {"": to_table(data, "data")}
    if not data:
        raise DataError("the dict of tables is empty; give one table per client.")
    for name, one in data.items():
        if not is_table(one):
            raise DataError(
                f"the dict has {_kind_of(one)} at '{name}' instead of a table; a dict holds one "
                "table per client (a dict of columns becomes one with pyarrow.table(...))."
            )
    names = [str(name).strip() for name in data]
    if len(set(names)) < len(names) or not all(names):
        raise DataError(
            "two clients of the dict have the same name, or one has an empty name; give every "
            "client a name of its own."
        )
    found = [to_table(one, f"the table of '{name}'") for name, one in data.items()]
    return "", {names[i]: found[i] for i in ordered_names(names)}


def is_table(data: Any) -> bool:
    """Whether an object is a table that `to_table` converts."""
    return (
        isinstance(data, Frame)
        or (is_arrow(data) and hasattr(data, "schema"))
        or hasattr(data, "__arrow_c_stream__")
        or _root(data) in ("pandas", "polars", "datasets")
    )


def to_table(data: Any, what: str) -> Any:
    """Return a `Frame` as it is, with clean names, and convert anything else with `to_arrow`."""
    if isinstance(data, Frame):
        names = clean_names(what, data.names)
        return Frame(dict(zip(names, data.columns.values(), strict=True)))
    return to_arrow(data, what)


def to_arrow(data: Any, what: str) -> Any:
    """Convert a table to an arrow table whose columns have names that are texts."""
    pa = pyarrow()
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif isinstance(data, pa.RecordBatchReader):
        data = data.read_all()
    root = _root(data)
    if root == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data, what)
    if root == "polars" and hasattr(data, "collect"):  # a lazy frame
        data = data.collect()
    if root == "datasets" and hasattr(data, "with_format"):
        data = _from_hugging_face(data, what)
    if not isinstance(data, pa.Table):
        if not hasattr(data, "__arrow_c_stream__") or hasattr(data, "to_frame"):  # not a column
            raise DataError(f"{what} is {_kind_of(data)}, which is not a table; give {KINDS}.")
        data = pa.table(data)
    names = clean_names(what, data.column_names)
    return pa.table([_without_views(column) for column in data.columns], names=names)


def _without_views(values: Any) -> Any:
    """A column whose texts are not views, which polars makes and many functions do not accept."""
    pa, kind = pyarrow(), values.type
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        chunks = [
            pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(pa.string()))
            for part in values.chunks
        ]
        return pa.chunked_array(chunks, pa.dictionary(kind.index_type, pa.string()))
    return values.cast(pa.string()) if pa.types.is_string_view(kind) else values


def _from_pandas(frame: Any, what: str) -> Any:
    """A pandas frame without its index, column by column, so that a message can name one."""
    if getattr(frame.columns, "nlevels", 1) > 1:
        raise DataError(
            f"{what} has columns of several levels; give each column one name, for example with "
            "frame.columns = ['_'.join(name) for name in frame.columns]."
        )
    pa = pyarrow()
    names = clean_names(what, [str(name) for name in frame.columns])
    arrays = [_array(frame.iloc[:, i], f"column '{n}' of {what}") for i, n in enumerate(names)]
    return pa.table(arrays, names=names) if names else _no_columns(what)


def _array(values: Any, what: str) -> Any:
    pa = pyarrow()
    try:
        return pa.Array.from_pandas(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    # of several types: as a CSV file would have it
    missing = values.isna().to_numpy()
    plain = [None if gone else one for gone, one in zip(missing, values.tolist(), strict=True)]
    odd = next((v for v in plain if v is not None and not isinstance(v, str | int | float)), None)
    if odd is not None:
        raise DataError(
            f"{what} contains {_kind_of(odd)}, which is neither a number nor text; convert the "
            "column, or drop it."
        )
    return pa.array([one if one is None else str(one) for one in plain], pa.string())


def _no_columns(what: str) -> Any:
    raise DataError(f"{what} has no columns; give a table with columns and rows.")


def _from_hugging_face(data: Any, what: str) -> Any:
    """The rows of a Hugging Face data set, with class labels by their names."""
    if not hasattr(data, "select"):
        raise DataError(
            f"{what} is a data set that is streamed; load it without streaming=True, or convert "
            "the rows that you need."
        )
    pa, table = pyarrow(), data.with_format("arrow")[:]
    for i, (name, feature) in enumerate(data.features.items()):
        kind = type(feature).__name__
        if kind in ("Image", "Audio", "Video"):
            raise DataError(
                f"column '{name}' of {what} has the feature {kind}, which is not a column of a "
                "table; convert it to tensors and use Federation.from_tensors, or remove it."
            )
        if kind == "ClassLabel" and feature.names:
            words = pa.array(feature.names, pa.string())
            codes = table.column(name).combine_chunks()
            codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
            codes = pa.array([None if c is None or c < 0 else c for c in codes.to_pylist()])
            named = pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), words)
            table = table.set_column(i, name, named)
    return table


def _is_partitioned(data: Any) -> bool:
    return hasattr(data, "load_partition")


def _partitions(data: Any) -> tuple[str, dict[str, Any]]:
    """The clients of a partitioner or a FederatedDataset of flwr-datasets."""
    makers = getattr(data, "partitioners", None)  # by split, of a FederatedDataset
    if makers is None:
        return "", dict(_of_partitioner(data, data.load_partition))
    by_split = {}
    for split, maker in makers.items():
        data.load_partition(0, split)  # it assigns the data set to the partitioner
        by_split[split] = dict(_of_partitioner(maker, lambda k, s=split: data.load_partition(k, s)))
    if len(by_split) == 1:
        return "", next(iter(by_split.values()))
    names = list(dict.fromkeys(name for parts in by_split.values() for name in parts))
    found = {
        name: _with_splits({s: p[name] for s, p in by_split.items() if name in p}, "split")
        for name in names
    }
    return "split", {names[i]: found[names[i]] for i in ordered_names(names)}


def _of_partitioner(maker: Any, load: Any) -> list[tuple[str, Any]]:
    try:
        number = int(maker.num_partitions)
        names = getattr(maker, "partition_id_to_natural_id", None) or {}
        out = [(str(names.get(k, k)), to_arrow(load(k), f"partition {k}")) for k in range(number)]
    except AttributeError as error:
        raise DataError(
            f"the partitioner has no data set yet ({error}); set partitioner.dataset first."
        ) from None
    return [out[i] for i in ordered_names([name for name, _ in out])]


def _with_splits(parts: Mapping[str, Any], column: str) -> Any:
    """The rows of several splits in one table, with a column that names the split."""
    for name, table in parts.items():
        if part_of(name) < 0:
            raise DataError(
                f"the data set has a split '{name}', which is neither train, validation nor test; "
                "give one split, or rename it."
            )
        if column in table.column_names:
            raise DataError(
                f"the splits of the data set have a column '{column}' of their own; rename it, or "
                "give one split."
            )
    pa = pyarrow()
    tables = [
        table.append_column(column, pa.array([name] * table.num_rows, pa.string()))
        for name, table in parts.items()
    ]
    return pa.concat_tables(tables, promote_options="permissive")


def _opened(table: Any, place: str, missing: Sequence[str]) -> OpenTable:
    if not _shape(table)[1]:
        raise DataError(f"{place} has no rows; give a table with rows.")
    return _open(place, table, missing)


def _open(place: str, table: Any, missing: Sequence[str]) -> OpenTable:
    names, rows = _shape(table)
    if isinstance(table, Frame):
        one = lambda i: table[names[i]]  # noqa: E731
    else:
        one = lambda i: from_arrow(table.column(i))  # noqa: E731
    return OpenTable(place, names, rows, one, missing, comma=False)


def _shape(table: Any) -> tuple[list[str], int]:
    """The names of the columns, and the number of rows."""
    if isinstance(table, Frame):
        return table.names, len(table)
    return table.column_names, table.num_rows


def _root(data: Any) -> str:
    """The package that an object's class is from, or one of its bases."""
    roots = [kind.__module__.partition(".")[0] for kind in type(data).__mro__]
    return next((root for root in roots if root in ("pandas", "polars", "datasets")), "")


def _kind_of(data: Any) -> str:
    kind = type(data)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _digest(tables: Mapping[str, Any]) -> str:
    """A digest of the content, whatever kind of frame it came in."""
    digest = hashlib.blake2b(digest_size=16)
    for name, table in tables.items():
        names, rows = _shape(table)
        digest.update(repr((name, rows, names)).encode())
        place = f"the table of '{name}'" if name else "the table"
        opened = _open(place, table, MISSING)
        for column in opened.names:
            values = opened.column(column)
            digest.update(values.kind.encode())
            if isinstance(values, Other):
                continue
            if isinstance(values, Words):
                digest.update(repr(values.levels).encode())
                digest.update(np.ascontiguousarray(values.codes).data)
            elif isinstance(values, Numbers):
                digest.update(np.ascontiguousarray(values.values, dtype=np.float64).data)
    return digest.hexdigest()


def without_roles(data: Any) -> ConfigError:
    """The error of data for a run that are, for example, a plain table, which has no roles yet."""
    return ConfigError(
        f"data is {_kind_of(data)}; make it a federation first, for example "
        'isonomy.federation(frame, label="...", client="...", protected=["..."]).'
    )
