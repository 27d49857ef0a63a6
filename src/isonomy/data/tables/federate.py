"""From tables to a federation, prepared in the same way as in a real federation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import SPLITS, Attribute
from isonomy.core.values import Frame
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS, Categories, Partition, Rows, assign
from isonomy.data.tables.agreement import agree
from isonomy.data.tables.columns import Column, Numbers, Table, Words, as_words, column
from isonomy.data.tables.files import OpenTable, find, open_table
from isonomy.data.tables.fit import Fitted
from isonomy.data.tables.fit import fit as fit_exactly
from isonomy.data.tables.local_clients import LocalClients
from isonomy.data.tables.preprocessing import check_finite
from isonomy.data.tables.roles import Roles
from isonomy.data.tables.sources import Files, Pieces, Source, by_client, reorder
from isonomy.errors import ConfigError

if TYPE_CHECKING:
    from isonomy.data.dataset import Request

Fit = Callable[..., Fitted]
"""Fits the preprocessing, as `isonomy.data.tables.fit.fit` does."""


def federate(
    table: Frame,
    roles: Roles,
    request: Request,
    *,
    source: str,
    notes: Sequence[str] = (),
) -> Federation:
    """Build a federation from one table, divided by the partition of the request."""
    columns = {name: column(table[name], roles.missing) for name in table.names}
    whole = Table(columns, len(table))
    pieces = divide(
        whole, roles, request.partition, request.partition_options, request.clients, request.seed
    )
    fractions = request.options.get("fractions", FRACTIONS)
    return assemble(
        pieces, roles, request.seed, fractions, source=source, notes=notes, fit=request.fit
    )


def divide(
    table: Table,
    roles: Roles,
    partition: Partition,
    options: Any,
    clients: int,
    seed: int,
) -> Pieces:
    """Divide the rows of one table among clients with a partition. Only for simulations."""
    if partition.function is None:
        raise ConfigError(
            f"partition '{partition.name}' cannot divide the rows of a table; choose another "
            "partition."
        )
    schema, _ = agree(LocalClients(Pieces(table, [0, table.rows], ["all"])), ["all"], roles)
    target, labelled = schema.target(table)
    if not labelled.all():  # rows without a label are not used
        keep = np.flatnonzero(labelled)
        kept = {name: reorder(values, keep) for name, values in table.columns.items()}
        table = Table(kept, len(keep), table.place)
        target = target[keep]
    groups = schema.group_codes(table)
    labels = target.astype(np.int64) if schema.label.classes else np.zeros(table.rows, np.int64)
    for name in schema.features:  # here row numbers are still those of the file
        check_finite(table, name)
    named = {
        name: _categories(values)
        for name, values in table.columns.items()
        if _can_partition(values)
    }
    rows = Rows(labels, groups[:, 0] if groups.shape[1] else None, named)
    members, names = assign(rows, partition, options, clients, seed)
    order = torch.cat(members).numpy()
    bounds = np.concatenate([[0], np.cumsum([len(m) for m in members])]).tolist()
    ordered = {name: reorder(values, order) for name, values in table.columns.items()}
    return Pieces(Table(ordered, table.rows, table.place), bounds, names)


def _can_partition(values: Column) -> bool:
    """Whether the partition `column` can use this column."""
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
    fit: Fit | None = None,
) -> Federation:
    """Fit the preprocessing from the clients' replies, then apply it at each client."""
    ask = LocalClients(source_of)
    names = source_of.names
    fitted = (fit or fit_exactly)(ask, names, roles, seed=seed, fractions=fractions)
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
        # mode: the indices are valid, and other modes would make a copy
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
    """Return the row ranges of splits of these sizes, [clients, splits, 2]."""
    flat = np.array(sizes, dtype=np.int64).reshape(-1)
    ends = np.cumsum(flat)
    return np.stack([ends - flat, ends], axis=1).reshape(len(sizes), len(SPLITS), 2)


def order_of(part: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the rows ordered by split, without unused rows."""
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
    exclude: Sequence[str] = (),
    fit: Fit | None = None,
) -> Federation:
    """Build a federation from the tables at a path."""
    if not path:
        raise ConfigError(
            'data.path is not set; give a folder or a file, for example data.path = "hospitals".'
        )
    paths, folder = find(path, exclude)
    given = Given(
        what=f"'{path}'",
        tables=f"the tables at '{path}'",
        each=lambda: Files(paths, roles.missing, encoding) if folder else None,
        whole=lambda: open_table(paths[0], roles.missing, encoding),
        are="is a folder, in which each file is one client",
        instead="set data.path to one file",
    )
    return assigned(
        given,
        roles,
        client=client,
        partition=partition,
        partition_options=partition_options,
        clients=clients,
        seed=seed,
        fractions=fractions,
        source=f"own tables ({Path(path).name or path})",
        fit=fit,
    )


@dataclass(frozen=True)
class Given:
    """Tables that a user gave: `each` is one per client or None, then `whole` is one for all.

    The other fields are words for messages: what they are, what separate tables are, and how to
    give one table instead.
    """

    what: str
    tables: str
    each: Callable[[], Source | None]
    whole: Callable[[], OpenTable]
    are: str
    instead: str


def assigned(
    given: Given,
    roles: Roles,
    *,
    client: str = "",
    partition: Partition | None = None,
    partition_options: Any = None,
    clients: int = 0,
    seed: int = 0,
    fractions: Sequence[float] = FRACTIONS,
    source: str,
    fit: Fit | None = None,
) -> Federation:
    """Build a federation from tables: assign rows to clients, then fit the preprocessing."""
    found = given.each()
    if partition is not None and partition.function is not None:
        if found is not None or client:
            raise ConfigError(
                f"the tables already assign rows to clients, but partition = '{partition.name}' is "
                f"set; remove partition, or {given.instead} and remove client."
            )
        found = divide(given.whole().whole(), roles, partition, partition_options, clients, seed)
    elif found is not None:
        if client:
            raise ConfigError(
                f'{given.what} {given.are}; remove client = "{client}", or {given.instead} with '
                "the rows of all clients."
            )
    elif client:
        if client in roles.named():
            raise ConfigError(
                f"column '{client}' identifies the clients and cannot also be the label, "
                "protected, a feature, dropped or the split; remove it there."
            )
        found = by_client(given.whole(), client)
    else:
        raise ConfigError(
            f"{given.what} is one table; name the column that identifies the clients (client = "
            '"..."), '
            'or let a partition divide the rows (partition = "iid", clients = 10).'
        )
    if clients not in (0, len(found.names)):
        raise ConfigError(
            f"clients = {clients}, but {given.tables} belong to {len(found.names)} "
            "clients; remove the number of clients."
        )
    return assemble(found, roles, seed, fractions, source=source, fit=fit)


def fingerprint(federation: Federation) -> str:
    """Return a short digest of the examples, to detect tables that changed between two runs."""
    if federation.digest:
        return federation.digest
    digest = hashlib.blake2b(digest_size=16)
    named = (tuple(federation.names), federation.labels, federation.features, federation.attributes)
    digest.update(repr(named).encode())
    for part in (federation.x, federation.y, federation.groups, federation.ranges):
        digest.update(np.ascontiguousarray(part.numpy()).data)
    return digest.hexdigest()
