"""From tables to a federation: prepared as a real federation would prepare them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import SPLITS, Attribute
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS, Categories, Partition, Rows, assign
from isonomy.data.tables.agreement import agree
from isonomy.data.tables.columns import Column, Numbers, Table, Words, as_words, column
from isonomy.data.tables.files import find, read
from isonomy.data.tables.fit import fit
from isonomy.data.tables.local_clients import LocalClients
from isonomy.data.tables.preprocessing import check_finite
from isonomy.data.tables.roles import Roles
from isonomy.data.tables.sources import Files, Pieces, Source, read_clients, reorder
from isonomy.errors import ConfigError

if TYPE_CHECKING:
    from isonomy.data.dataset import Request


def federate(
    table: Any,
    roles: Roles,
    request: Request,
    *,
    source: str,
    notes: Sequence[str] = (),
) -> Federation:
    """The federation of one (arrow) table's rows, shared out as the request's partition says."""
    columns = {name: column(table.column(name), roles.missing) for name in table.column_names}
    whole = Table(columns, table.num_rows)
    pieces = share_out(
        whole, roles, request.partition, request.partition_options, request.clients, request.seed
    )
    fractions = request.options.get("fractions", FRACTIONS)
    return assemble(pieces, roles, request.seed, fractions, source=source, notes=notes)


def share_out(
    table: Table,
    roles: Roles,
    partition: Partition,
    options: Any,
    clients: int,
    seed: int,
) -> Pieces:
    """One table's rows as the clients that a partition makes. Only a simulation can do this."""
    if partition.function is None:
        raise ConfigError(f"partition '{partition.name}' does not share out a table's rows.")
    schema, _ = agree(LocalClients(Pieces(table, [0, table.rows], ["all"])), ["all"], roles)
    target, labelled = schema.target(table)
    if not labelled.all():  # a partition deals rows with labels; `fit` would drop the others
        keep = np.flatnonzero(labelled)
        kept = {name: reorder(values, keep) for name, values in table.columns.items()}
        table = Table(kept, len(keep), table.place)
        target = target[keep]
    groups = schema.group_codes(table)
    labels = target.astype(np.int64) if schema.label.classes else np.zeros(table.rows, np.int64)
    for name in schema.features:  # here rows still have the numbers that the file gives them
        check_finite(table, name)
    named = {name: _categories(values) for name, values in table.columns.items() if _short(values)}
    rows = Rows(labels, groups[:, 0] if groups.shape[1] else None, named)
    members, names = assign(rows, partition, options, clients, seed)
    order = torch.cat(members).numpy()
    bounds = np.concatenate([[0], np.cumsum([len(m) for m in members])]).tolist()
    ordered = {name: reorder(values, order) for name, values in table.columns.items()}
    return Pieces(Table(ordered, table.rows, table.place), bounds, names)


def _short(values: Column) -> bool:
    """Whether a partition by this column could make sense."""
    return isinstance(values, Words) or (isinstance(values, Numbers) and values.whole())


def _categories(values: Column) -> Categories:
    words = as_words(values)
    gone = words.missing()
    if not gone.any():
        return Categories(words.codes.astype(np.int64), words.levels)
    codes = np.where(gone, len(words.levels), words.codes).astype(np.int64)
    return Categories(codes, (*words.levels, "missing"))


def assemble(
    source_of: Source,
    roles: Roles,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
    *,
    source: str = "tables",
    notes: Sequence[str] = (),
) -> Federation:
    """Fit from what clients reply, then let each prepare its own rows."""
    ask = LocalClients(source_of)
    names = source_of.names
    fitted = fit(ask, names, roles, seed=seed, fractions=fractions)
    prepared = fitted.preprocessing
    schema = prepared.table
    ranges = ranges_of(fitted.sizes)
    rows = int(ranges[-1, -1, 1])
    x = np.empty((rows, len(prepared.features)), dtype=np.float32)
    y = np.empty(rows, dtype=np.int64 if schema.label.classes else np.float32)
    groups = np.empty((rows, len(roles.protected)), dtype=np.int64)
    for k in range(len(names)):
        client = ask.client(k)
        assert client.kept is not None
        order = order_of(client.kept)
        at = slice(int(ranges[k, 0, 0]), int(ranges[k, -1, 1]))
        # clip: the indices are right, and other modes would copy once more
        np.take(prepared.transform(client.table), order, axis=0, out=x[at], mode="clip")
        y[at] = schema.target(client.table)[0][order]
        groups[at] = schema.group_codes(client.table)[order]
    return Federation(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        groups=torch.from_numpy(groups),
        ranges=torch.from_numpy(ranges),
        classes=len(schema.label.classes),
        attributes=tuple(Attribute(name, schema.levels(name)) for name in roles.protected),
        names=names,
        labels=schema.label.classes,
        features=prepared.features,
        source=source,
        notes=tuple(notes),
        warnings=tuple(fitted.warnings),
        preprocessing=prepared.model_dump(mode="json"),
    )


def ranges_of(sizes: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Where splits of these sizes lie, [clients, splits, 2], one after another."""
    flat = np.array(sizes, dtype=np.int64).reshape(-1)
    ends = np.cumsum(flat)
    return np.stack([ends - flat, ends], axis=1).reshape(len(sizes), len(SPLITS), 2)


def order_of(part: NDArray[np.int8]) -> NDArray[np.int64]:
    """The rows by split, without those left out."""
    order = np.argsort(part, kind="stable")
    return order[int((part < 0).sum()) :]


# --- a user's own tables -------------------------------------------------------------------------


def own(
    path: str,
    roles: Roles,
    *,
    client: str = "",
    partition: Partition | None = None,
    partition_options: Any = None,
    clients: int = 0,
    seed: int = 0,
    fractions: Sequence[float] = FRACTIONS,
    encoding: str = "utf-8",
) -> Federation:
    """The federation of the tables at a path."""
    if not path:
        raise ConfigError(
            'where are the tables; give a folder or a file, e.g. data.path = "hospitals".'
        )
    paths, folder = find(path)
    source: Source
    if partition is not None and partition.function is not None:
        source = _dealt(
            paths, folder, roles, client, partition, partition_options, clients, seed, encoding
        )
    elif folder:
        if client:
            raise ConfigError(
                f"'{path}' is a folder, where each file is a client; leave client = \"{client}\" "
                "out, or name the one file that holds all of them."
            )
        source = Files(paths, roles.missing, encoding)
    elif client:
        if client in roles.named():
            raise ConfigError(
                f"column '{client}' tells the clients apart and cannot be the label, protected, "
                "a feature, dropped or the split as well; take it out there."
            )
        source = read_clients(paths[0], client, roles.missing, encoding)
    else:
        raise ConfigError(
            f"'{path}' is one table: say which column tells the clients apart (client = \"...\"), "
            'or have its rows dealt out (partition = "iid", clients = 10).'
        )
    if clients not in (0, len(source.names)):
        raise ConfigError(
            f"clients = {clients}, but the tables at '{path}' are of {len(source.names)} clients; "
            "leave the number out."
        )
    name = Path(path).name or str(path)
    return assemble(source, roles, seed, fractions, source=f"own tables ({name})")


def _dealt(
    paths: Sequence[Path],
    folder: bool,
    roles: Roles,
    client: str,
    partition: Partition,
    options: Any,
    clients: int,
    seed: int,
    encoding: str,
) -> Pieces:
    if folder or client:
        raise ConfigError(
            f"the tables say who holds which row, and partition = '{partition.name}' would deal "
            "them out anew; leave partition out, or name one file without a client column."
        )
    table = read(paths[0], roles.missing, encoding)
    return share_out(table, roles, partition, options, clients, seed)


def fingerprint(federation: Federation) -> str:
    """A short digest of the examples, to tell whether tables changed between two readings."""
    digest = hashlib.blake2b(digest_size=16)
    named = (federation.names, federation.labels, federation.features, federation.attributes)
    digest.update(repr(named).encode())
    for part in (federation.x, federation.y, federation.groups, federation.ranges):
        digest.update(np.ascontiguousarray(part.numpy()).data)
    return digest.hexdigest()
