"""What a client does with its table: the client's half of the preparation.

A phase is a pure function of one client and a message, as an algorithm's phases are: it returns
a reply for the server and what the client keeps. Replies hold counts, sums and sets of values,
never a row; they and the messages are plain JSON, so that they cross a network as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.data.federation import SPLITS
from isonomy.data.partition import split as deal
from isonomy.data.tables.columns import Numbers, Other, Table, Words, as_words
from isonomy.data.tables.preprocessing import Schema, infinite_number
from isonomy.errors import DataError

Message = dict[str, Any]
Reply = dict[str, Any]
MOST = 1_000  # different values of a column that a client tells

_NUMBERED = re.compile(r"(^|[_\W])(id|nr|no|number|index|key|uuid|guid)$|^(id|uuid)[_\W]|Id$|ID$")
_PARTS = {
    "train": ("train", "training", "tr"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "holdout", "te"),
}
_PART = {word: s for s, split in enumerate(SPLITS) for word in _PARTS[split]}


Kept = NDArray[np.int8]
"""What a client keeps between phases: each row's split, in the order of SPLITS; -1: left out."""


@dataclass(frozen=True, eq=False)
class Client:
    """One client: its number and name, its table, and what it kept."""

    number: int
    name: str
    table: Table
    kept: Kept | None = None


Phase = Callable[[Message, Client], tuple[Reply, Kept | None]]


def look(message: Message, client: Client) -> tuple[Reply, None]:
    """How many rows there are, and each column's kind."""
    del message
    table = client.table
    if not table.rows:
        raise DataError(
            f"{_where(client)} has a line of names and no rows; fill it, or take the client away."
        )
    columns = {}
    for name, column in table.columns.items():
        said: dict[str, Any] = {"kind": column.kind, "held": int((~column.missing()).sum())}
        if isinstance(column, Words):
            said["distinct"] = int((column.counts() > 0).sum())
            said["strange"] = _strange(column)
        elif isinstance(column, Numbers) and _NUMBERED.search(name) and column.whole():
            said["distinct"] = len(np.unique(column.values[~column.missing()]))
        columns[name] = said
    return {"rows": table.rows, "columns": columns}, None


def _strange(column: Words) -> int | None:
    """The first row with a text where most values are numbers; its content stays here."""
    plain = np.array([_is_number(level) for level in column.levels] + [True])
    texts = ~plain[column.codes]
    there = column.codes >= 0
    if not texts.any() or 2 * texts.sum() > there.sum():
        return None
    return int(texts.argmax()) + 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def values(message: Message, client: Client) -> tuple[Reply, None]:
    """The values of the named columns and how often each occurs; of too many, only that."""
    out: Reply = {}
    for name in message["columns"]:
        column = client.table.columns[name]
        said: dict[str, Any] = {"missing": int(column.missing().sum())}
        if isinstance(column, Numbers):
            said["whole"] = column.whole()
        words = as_words(column)
        if int((words.counts() > 0).sum()) <= MOST:
            said["values"] = _told(words)
        out[name] = said
    return out, None


def _told(words: Words) -> dict[str, int]:
    counts = words.counts()
    return {words.levels[i]: int(counts[i]) for i in np.flatnonzero(counts)}


def span(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """How many numbers there are in a column, the smallest and the largest."""
    at = _numbers(message, client)
    if not len(at):
        return {"count": 0}, client.kept
    return {"count": len(at), "low": float(at.min()), "high": float(at.max())}, client.kept


def below(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """How many numbers of a column are at or below each of the marks."""
    at = np.sort(_numbers(message, client))
    found = np.searchsorted(at, np.array(message["marks"]), side="right")
    return {"counts": found.tolist()}, client.kept


def above(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """The smallest number of a column above each of the marks, if there is one."""
    at = np.sort(_numbers(message, client))
    found = np.searchsorted(at, np.array(message["marks"]), side="right")
    return {"next": [float(at[i]) if i < len(at) else None for i in found]}, client.kept


def _numbers(message: Message, client: Client) -> NDArray[np.float64]:
    """The numbers of a column: of training rows, or of all."""
    column = client.table.columns[message["column"]]
    if not isinstance(column, Numbers):
        return np.zeros(0)
    values = column.values.astype(np.float64)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise DataError(infinite_number(client.table, message["column"], int(infinite[0])))
    if message["train"] and client.kept is not None:
        values = values[client.kept == 0]
    return values[~np.isnan(values)]


def survey(message: Message, client: Client) -> tuple[Reply, Kept]:
    """Split the rows; tell of the training rows what imputing, scaling and encoding need.

    Of numbers the count, mean, sum of squared deviations from it, smallest and largest; of
    categories the values with their counts.
    """
    schema = Schema.model_validate(message["schema"])
    kept = _keep(schema, message, client)
    train = kept == 0
    if not train.any():
        raise DataError(
            f"{_where(client)} has no row to train on; a client needs at least one with a label"
            f"{f' and {schema.split} = train' if schema.split else ''}."
        )
    numbers: dict[str, Any] = {}
    categories: dict[str, Any] = {}
    for name, kind in schema.features.items():
        column = client.table.columns[name]
        if kind == "category":
            words = as_words(column)
            words = Words(words.codes[train], words.levels)
            gone = int(words.missing().sum())
            categories[name] = {"missing": gone, "values": _told(words)}
        else:
            numbers[name] = _moments(client.table, name, train)
    sizes = [int((kept == s).sum()) for s in range(len(SPLITS))]
    reply = {
        "sizes": sizes,
        "unlabelled": int((kept < 0).sum()),
        "numbers": numbers,
        "categories": categories,
    }
    return reply, kept


def _moments(table: Table, name: str, train: NDArray[np.bool_]) -> dict[str, Any]:
    column = table.columns[name]
    if isinstance(column, Other):
        return {"count": 0, "missing": int(train.sum())}
    assert isinstance(column, Numbers)
    if column.values.dtype.kind == "f":
        infinite = np.flatnonzero(np.isinf(column.values))
        if len(infinite):
            raise DataError(infinite_number(table, name, int(infinite[0])))
    at = column.values[train].astype(np.float64)
    gone = np.isnan(at)
    if gone.any():
        at = at[~gone]
    if not len(at):
        return {"count": 0, "missing": int(gone.sum())}
    mean = float(at.mean())
    return {
        "count": len(at),
        "missing": int(gone.sum()),
        "mean": mean,
        "squares": float(np.square(at - mean).sum()),
        "low": float(at.min()),
        "high": float(at.max()),
    }


def _keep(schema: Schema, message: Message, client: Client) -> Kept:
    target, labelled = schema.target(client.table)
    part = np.full(client.table.rows, -1, dtype=np.int8)
    if schema.split:
        part[:] = _given(schema.split, client)
        part[~labelled] = -1
        return part
    rows = torch.from_numpy(np.flatnonzero(labelled))
    strata = target if schema.label.classes else np.zeros(len(target), dtype=np.int64)
    first = schema.group_codes(client.table)[:, 0] if schema.protected else None
    seed = (int(message["seed"]), client.number)
    if len(rows):
        pieces = deal(rows, strata.astype(np.int64), first, message["fractions"], seed)
        for s, name in enumerate(SPLITS):
            part[pieces[name].numpy()] = s
    return part


def _given(split: str, client: Client) -> NDArray[np.int8]:
    """The splits that a column tells."""
    words = as_words(client.table.columns[split])
    known = [_PART.get(level.lower(), -1) for level in words.levels]
    codes = np.array([*known, -1], dtype=np.int8)[words.codes]
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        row = int(wrong[0])
        held = words.levels[words.codes[row]] if words.codes[row] >= 0 else "nothing"
        raise DataError(
            f"row {row + 1} of {_where(client)} has '{held}' as its '{split}'; write train, "
            "validation or test in every row."
        )
    return codes


def _where(client: Client) -> str:
    return client.table.place or f"client '{client.name}'"
