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

from isonomy.core.examples import SPLITS
from isonomy.data.partition import split as deal
from isonomy.data.tables.columns import Numbers, Other, Table, Words, as_words, is_number
from isonomy.data.tables.preprocessing import Schema, check_finite
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


def part_of(word: str) -> int:
    """Which of SPLITS a word names, such as train or dev; -1 for none."""
    return _PART.get(word.lower(), -1)


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

Ask = Callable[[Phase, Message], list[Reply]]
"""Runs a phase at every client and returns the replies, in the clients' order."""


def look(message: Message, client: Client) -> tuple[Reply, None]:
    """How many rows there are, and each column's kind."""
    del message
    table = client.table
    if not table.rows:
        raise DataError(
            f"{_where(client)} has names of columns and no rows; fill it, or take it away."
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
    plain = np.ones(len(column.levels) + 1, dtype=np.bool_)  # the last for what is missing
    for level in np.flatnonzero(column.counts()):
        plain[level] = is_number(column.levels[level])
    texts = ~plain[column.codes]
    there = column.codes >= 0
    if not texts.any() or 2 * texts.sum() > there.sum():
        return None
    return int(texts.argmax()) + 1


def values(message: Message, client: Client) -> tuple[Reply, None]:
    """The values of the named columns and how often each occurs, unless they are too many.

    The message says how many are of use for each column; more are not told.
    """
    out: Reply = {}
    for name, most in message["columns"].items():
        column = client.table.columns[name]
        said: dict[str, Any] = {"missing": int(column.missing().sum())}
        if isinstance(column, Numbers):
            said["whole"] = column.whole()
        words = as_words(column) if most else None
        if words is not None and int((words.counts() > 0).sum()) <= most:
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
    marks = np.array(message["marks"])
    first = np.searchsorted(marks, _numbers(message, client), side="left")
    counts = np.bincount(first, minlength=len(marks) + 1)[:-1]
    return {"counts": np.cumsum(counts).tolist()}, client.kept


def _numbers(message: Message, client: Client) -> NDArray[np.float64]:
    """The numbers of a column: of training rows, or of all."""
    column = client.table.columns[message["column"]]
    if not isinstance(column, Numbers):
        return np.zeros(0)
    check_finite(client.table, message["column"])
    values = column.values.astype(np.float64)
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
    check_finite(table, name)
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
    known = [part_of(level) for level in words.levels]
    codes = np.array([*known, -1], dtype=np.int8)[words.codes]
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        row = int(wrong[0])
        held = f"'{words.levels[words.codes[row]]}'" if words.codes[row] >= 0 else "nothing"
        raise DataError(
            f"row {row + 1} of {_where(client)} has {held} as its '{split}'; write train, "
            "validation or test in every row."
        )
    return codes


def _where(client: Client) -> str:
    return client.table.place or f"client '{client.name}'"
