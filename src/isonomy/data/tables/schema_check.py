"""Check whether a table matches the schema of a federation, before it is used."""

from __future__ import annotations

import numpy as np

from isonomy.data.tables.columns import Column, Numbers, Other, Table, as_words, is_number
from isonomy.data.tables.preprocessing import CONTENT, GONE, Groups, Schema
from isonomy.data.tables.roles import listed
from isonomy.errors import did_you_mean


def mismatches(table: Table, schema: Schema) -> list[str]:
    """Return one sentence for each way in which a table does not match the schema."""
    out = []
    if not table.rows:
        return ["the table has a header line but no rows."]
    needed = dict.fromkeys(
        [schema.label.name, *(g.name for g in schema.groups), *schema.features]
        + ([schema.split] if schema.split else [])
    )
    for name in needed:
        column = table.columns.get(name)
        if column is None:
            spare = [other for other in table.columns if other not in needed]
            out.append(
                f"the table has no column '{name}', which the federation needs."
                f"{did_you_mean(name, spare)}"
            )
    here = {name: table.columns[name] for name in needed if name in table.columns}
    for name, kind in schema.features.items():
        if name in here and kind == "number" and not _numeric(here[name]):
            out.append(
                f"column '{name}' contains {CONTENT[here[name].kind]}{_where(here[name])}, but the "
                "federation expects numbers."
            )
    if schema.label.name in here:
        out += _label(here[schema.label.name], schema)
    for group in schema.groups:
        if group.name in here:
            out += _group(here[group.name], group)
    return out


def unknown_to(schema: Schema, table: Table) -> list[str]:
    """Return the label and the protected columns of a table with values that the schema lacks."""
    known = {group.name: group.levels for group in schema.groups if not group.edges}
    known[schema.label.name] = schema.label.classes
    return [
        name
        for name, levels in known.items()
        if levels and name in table.columns and _unknown_values("", table.columns[name], levels)
    ]


def _numeric(column: Column) -> bool:
    return isinstance(column, Numbers) or (isinstance(column, Other) and column.kind == "empty")


def _where(column: Column) -> str:
    """Return the first row with text if most values are numbers."""
    if column.kind != "text":
        return ""
    words = as_words(column)
    texts = np.array([not is_number(level) for level in words.levels] + [False])[words.codes]
    few = 0 < texts.sum() < 0.5 * len(texts)
    return f" (row {int(texts.argmax()) + 1})" if few else ""


def _label(column: Column, schema: Schema) -> list[str]:
    name, classes = schema.label.name, schema.label.classes
    if column.missing().all():
        return [f"the label '{name}' is empty in every row."]
    if not classes:
        return [] if _numeric(column) else [f"the label '{name}' must contain numbers."]
    return _unknown_values(f"the label '{name}'", column, classes)


def _group(column: Column, group: Groups) -> list[str]:
    what = f"the protected column '{group.name}'"
    gone = int(column.missing().sum())
    out = []
    if gone and GONE not in group.levels:
        out.append(f"{what} is empty in {gone:,} rows, but the federation has no group for them.")
    if not group.edges:
        out += _unknown_values(what, column, group.levels)
    elif not _numeric(column):
        out.append(f"{what} contains {CONTENT[column.kind]}, but the federation expects numbers.")
    return out


def _unknown_values(what: str, column: Column, known: tuple[str, ...]) -> list[str]:
    words = as_words(column)
    counts = words.counts()
    held = [level for i, level in enumerate(words.levels) if counts[i] and level not in known]
    if not held:
        return []
    return [
        f"{what} contains {listed([repr(h) for h in held], 5)}, which the federation does not "
        f"know; the known values are {listed([repr(k) for k in known], 8)}."
        f"{did_you_mean(held[0], known)}"
    ]
