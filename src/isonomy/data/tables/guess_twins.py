"""Features that predict the label almost perfectly alone: often the label under another name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isonomy.data.tables.column_profile import ColumnProfile
from isonomy.data.tables.columns import Numbers, Table, as_words

NEAR = 0.98  # AUC, or accuracy with more than two classes, from which a feature is a twin
ROWS = 20_000  # rows of the sample that are looked at
LEAST = 60  # rows with both values, and
LEAST_OF_A_CLASS = 10  # rows of each class, without which nothing is said


def twins(
    tables: Sequence[Table], features: Sequence[ColumnProfile], label: ColumnProfile
) -> dict[str, str]:
    """Return the features that predict the label alone, each with its figure in words."""
    y, there = _codes(tables, label.name)
    if not label.few:
        return {}
    found = {}
    for one in features:
        graded = one.kind == "number" and one.distinct > 20
        if graded:
            values = _numbers(tables, one.name)
            both = there & np.isfinite(values)
        else:
            codes, held = _codes(tables, one.name)
            values, both = codes.astype(np.float64), there & held
        text = _figure(values[both], y[both], graded)
        if text:
            found[one.name] = text
    return found


def _figure(values: NDArray[np.float64], y: NDArray[np.int64], graded: bool) -> str:
    classes, y = np.unique(y, return_inverse=True)
    if len(y) < LEAST or len(classes) < 2 or np.bincount(y).min() < LEAST_OF_A_CLASS:
        return ""
    if len(classes) > 2:
        share = accuracy(values, y)
        most = float(np.bincount(y).max() / len(y))
        return f"accuracy {share:.3f}" if share > max(NEAR, (1 + most) / 2) else ""
    area = auc(values, y) if graded else auc(*_scored(values, y))
    area = max(area, 1 - area)
    return f"AUC {area:.3f}" if area > NEAR else ""


def auc(score: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve of a score; equal scores count half.

    >>> auc(np.array([0.0, 1.0, 1.0, 2.0]), np.array([0, 0, 1, 1]))
    0.875
    """
    _, at, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[at]
    ones = int((y == 1).sum())
    return float((rank[y == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))


def accuracy(values: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Return the accuracy of each value's most frequent class, found on the other half of rows."""
    codes = _cut(values)
    right = 0
    for half in (0, 1):
        fit = np.arange(len(y)) % 2 == half
        counts = np.zeros((int(codes.max()) + 1, int(y.max()) + 1))
        np.add.at(counts, (codes[fit], y[fit]), 1)
        right += int((counts.argmax(1)[codes[~fit]] == y[~fit]).sum())
    return right / len(y)


def _scored(
    values: NDArray[np.float64], y: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return for one half of the rows the rate of class 1 that their value has in the other."""
    codes = np.unique(values, return_inverse=True)[1]
    fit = np.arange(len(y)) % 2 == 0
    held = np.bincount(codes[fit], minlength=int(codes.max()) + 1)
    ones = np.bincount(codes[fit & (y == 1)], minlength=len(held))
    rate = np.where(held > 0, ones / np.maximum(held, 1), y[fit].mean())
    return rate[codes[~fit]], y[~fit]


def _cut(values: NDArray[np.float64], parts: int = 50) -> NDArray[np.int64]:
    """Return values as codes; many values are divided into parts of equal size."""
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) <= parts:
        return codes
    edges = np.quantile(values, np.linspace(0, 1, parts + 1)[1:-1])
    return np.searchsorted(edges, values, side="right")


def _rows(table: Table, tables: Sequence[Table]) -> NDArray[np.int64]:
    """Return evenly spaced rows of a table, at most ROWS of all tables together."""
    most = max(1, ROWS // len(tables))
    return np.unique(np.linspace(0, table.rows - 1, min(table.rows, most)).astype(np.int64))


def _codes(tables: Sequence[Table], name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the codes of a column's values, common to all tables, and where there is a value."""
    known: dict[str, int] = {}
    out, there = [], []
    for table in tables:
        at = _rows(table, tables)
        if name not in table.columns:
            out.append(np.zeros(len(at), dtype=np.int64))
            there.append(np.zeros(len(at), dtype=np.bool_))
            continue
        words = as_words(table.columns[name])
        number = np.array([known.setdefault(w, len(known)) for w in words.levels] + [0])
        codes = words.codes[at]
        out.append(number[codes].astype(np.int64))
        there.append(codes >= 0)
    return np.concatenate(out), np.concatenate(there)


def _numbers(tables: Sequence[Table], name: str) -> NDArray[np.float64]:
    """Return a column of numbers, with NaN where there is none."""
    out = []
    for table in tables:
        at, column = _rows(table, tables), table.columns.get(name)
        if isinstance(column, Numbers):
            out.append(column.values[at].astype(np.float64))
        else:
            out.append(np.full(len(at), np.nan))
    return np.concatenate(out)
