"""The client side of table preparation.

As in an algorithm, a phase is a pure function of one client and a message: it returns a reply for
the server and what the client keeps. Replies contain counts, sums and sets of values, never a row.
Messages and replies are plain JSON and are sent over a network unchanged.
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
from isonomy.data.partition import split as split_rows
from isonomy.data.tables.columns import Numbers, Other, Table, Words, as_words, is_number
from isonomy.data.tables.preprocessing import Schema, check_finite
from isonomy.errors import DataError

Message = dict[str, Any]
Reply = dict[str, Any]
MOST = 1_000  # different values of a column that a client reports at most
MARKS = 127  # of a column, if clients do not answer to marks of the server's choice

_NUMBERED = re.compile(r"(^|[_\W])(id|nr|no|number|index|key|uuid|guid)$|^(id|uuid)[_\W]|Id$|ID$")
_PARTS = {
    "train": ("train", "training", "tr"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "holdout", "te"),
}
_PART = {word: s for s, split in enumerate(SPLITS) for word in _PARTS[split]}


def part_of(word: str) -> int:
    """Return the index in SPLITS that a word such as "train" or "dev" names; -1 for none."""
    return _PART.get(word.lower(), -1)


Kept = NDArray[np.int8]
"""What a client keeps between phases: the index of each row's split in SPLITS; -1: not used."""


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
    """Report the number of rows and the kind of each column."""
    del message
    table = client.table
    if not table.rows:
        raise DataError(
            f"{_where(client)} has a header line but no rows; add rows, or remove the table."
        )
    columns = {}
    for name, column in table.columns.items():
        report: dict[str, Any] = {"kind": column.kind, "held": int((~column.missing()).sum())}
        if isinstance(column, Words):
            report["distinct"] = int((column.counts() > 0).sum())
            report["strange"] = _strange(column)
        elif isinstance(column, Numbers) and _NUMBERED.search(name) and column.whole():
            report["distinct"] = len(np.unique(column.values[~column.missing()]))
        columns[name] = report
    return {"rows": table.rows, "columns": columns}, None


def _strange(column: Words) -> int | None:
    """Return the first row with text where most values are numbers; the text is not reported."""
    plain = np.ones(len(column.levels) + 1, dtype=np.bool_)  # the last entry is for missing values
    for level in np.flatnonzero(column.counts()):
        plain[level] = is_number(column.levels[level])
    texts = ~plain[column.codes]
    there = column.codes >= 0
    if not texts.any() or 2 * texts.sum() > there.sum():
        return None
    return int(texts.argmax()) + 1


def values(message: Message, client: Client) -> tuple[Reply, None]:
    """Report the values of the named columns with their counts, unless there are too many.

    The message gives the largest number of values for each column; beyond it none is reported.
    """
    out: Reply = {}
    for name, most in message["columns"].items():
        column = client.table.columns[name]
        report: dict[str, Any] = {"missing": int(column.missing().sum())}
        if isinstance(column, Numbers):
            report["whole"] = column.whole()
        words = as_words(column) if most else None
        if words is not None and int((words.counts() > 0).sum()) <= most:
            report["values"] = _value_counts(words)
        out[name] = report
    return out, None


def _value_counts(words: Words) -> dict[str, int]:
    counts = words.counts()
    return {words.levels[i]: int(counts[i]) for i in np.flatnonzero(counts)}


def span(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """Report the count of numbers in a column, the smallest and the largest."""
    at = _numbers(message, client)
    if not len(at):
        return {"count": 0}, client.kept
    return {"count": len(at), "low": float(at.min()), "high": float(at.max())}, client.kept


def below(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """Report how many numbers of a column are at or below each of the marks."""
    marks = np.array(message["marks"])
    first = np.searchsorted(marks, _numbers(message, client), side="left")
    counts = np.bincount(first, minlength=len(marks) + 1)[:-1]
    return {"counts": np.cumsum(counts).tolist()}, client.kept


def grid(message: Message, client: Client) -> tuple[Reply, Kept | None]:
    """Report how many numbers of a column in training rows are at or below even marks.

    A count of fewer than `least`, or of all but fewer than `least`, is reported as none or all.
    """
    at = _numbers(message | {"train": True}, client)
    counts = np.searchsorted(np.sort(at), marks_between(message["low"], message["high"]), "right")
    counts = np.where(counts < message["least"], 0, counts)
    counts = np.where(len(at) - counts < message["least"], len(at), counts)
    return {"counts": counts.tolist()}, client.kept


def marks_between(low: float, high: float) -> NDArray[np.float64]:
    """The marks of `grid`."""
    return np.linspace(low, high, MARKS + 2)[1:-1]


def _numbers(message: Message, client: Client) -> NDArray[np.float64]:
    """Return the numbers of a column, of the training rows or of all."""
    column = client.table.columns[message["column"]]
    if not isinstance(column, Numbers):
        return np.zeros(0)
    check_finite(client.table, message["column"])
    values = column.values.astype(np.float64)
    if message["train"] and client.kept is not None:
        values = values[client.kept == 0]
    return values[~np.isnan(values)]


def survey(message: Message, client: Client) -> tuple[Reply, Kept]:
    """Split the rows, and report what imputing, scaling and encoding need of the training rows.

    For numbers: the count, the mean, the sum of squared deviations from it, the smallest and the
    largest. For categories: the values with their counts, and the number of rows with a value that
    fewer than `least` rows have.
    """
    schema, least = Schema.model_validate(message["schema"]), int(message["least"])
    kept = _keep(schema, message, client)
    train = kept == 0
    if not train.any():
        raise DataError(
            f"{_where(client)} has no row to train on; every client needs at least one row with a "
            f"label{f' and {schema.split} = train' if schema.split else ''}."
        )
    numbers: dict[str, Any] = {}
    categories: dict[str, Any] = {}
    for name, kind in schema.features.items():
        column = client.table.columns[name]
        if kind == "category":
            words = as_words(column)
            words = Words(words.codes[train], words.levels)
            gone = int(words.missing().sum())
            found = _value_counts(words)
            shown = {value: n for value, n in found.items() if n >= least}
            rest = sum(found.values()) - sum(shown.values())
            categories[name] = {"missing": gone, "values": shown, "rest": rest}
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
        part[:] = given_splits(schema.split, client)
        part[~labelled] = -1
        return part
    rows = torch.from_numpy(np.flatnonzero(labelled))
    strata = target if schema.label.classes else np.zeros(len(target), dtype=np.int64)
    first = schema.group_codes(client.table)[:, 0] if schema.protected else None
    seed = (int(message["seed"]), client.number)
    if len(rows):
        pieces = split_rows(rows, strata.astype(np.int64), first, message["fractions"], seed)
        for s, name in enumerate(SPLITS):
            part[pieces[name].numpy()] = s
    return part


def given_splits(split: str, client: Client) -> NDArray[np.int8]:
    """Return the split of each row, as a column gives it."""
    words = as_words(client.table.columns[split])
    known = [part_of(level) for level in words.levels]
    codes = np.array([*known, -1], dtype=np.int8)[words.codes]
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        row = int(wrong[0])
        held = f"'{words.levels[words.codes[row]]}'" if words.codes[row] >= 0 else "no value"
        raise DataError(
            f"row {row + 1} of {_where(client)} has {held} in the split column '{split}'; write "
            "train, validation or test in every row."
        )
    return codes


def _where(client: Client) -> str:
    return client.table.place or f"client '{client.name}'"
