"""The groups of rows to predict, for a model whose decisions depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from isonomy.errors import DataError, did_you_mean
from isonomy.postprocess import Rule

if TYPE_CHECKING:
    from isonomy.data.tables.columns import Table
    from isonomy.data.tables.preprocessing import Preprocessing

Given = Sequence[str] | Sequence[int] | Tensor | Any
"""Each row's group, by its name or its number."""


def column_groups(table: Table, preparation: Preprocessing, rule: Rule) -> Tensor:
    """Each row's group [n] from the columns of a table, read as in training.

    Raises DataError if a column is missing.
    """
    from isonomy.data.tables.columns import as_words
    from isonomy.data.tables.preprocessing import recode
    from isonomy.data.tables.roles import parts

    about, schema = rule.about, preparation.table
    known = about.attribute in schema.protected
    needed = parts(about.attribute) if known else [about.attribute]
    for name in needed:
        if name not in table.columns:
            raise DataError(
                f"{table.place} has no column '{name}', but decisions of '{about.method}' depend "
                f"on the group '{about.attribute}'; add the column."
                f"{did_you_mean(name, table.columns)}"
            )
    if not known:
        return torch.from_numpy(recode(as_words(table.columns[about.attribute]), about.levels))
    own = tuple(group for group in schema.groups if group.name in needed)
    one = schema.model_copy(update={"protected": (about.attribute,), "groups": own})
    return torch.from_numpy(one.group_codes(table)[:, 0])


def given_groups(groups: Given | None, rows: int, rule: Rule) -> Tensor:
    """Each row's group [n] as a number, from names or numbers; raises DataError."""
    about = rule.about
    levels = ", ".join(about.levels)
    if groups is None:
        raise DataError(
            f"decisions of '{about.method}' depend on the group '{about.attribute}', and an array "
            f"does not name it; give each row's group with groups=[...] ({levels})."
        )
    values = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(values) != rows:
        raise DataError(f"{len(values)} groups for {rows} rows; give one for each row.")
    out = np.empty(rows, dtype=np.int64)
    for i, value in enumerate(values):
        number = about.levels.index(value) if value in about.levels else value
        if isinstance(number, bool | str) or not -1 <= number < len(about.levels):
            raise DataError(
                f"row {i + 1}: '{value}' is not a group of '{about.attribute}'; give one of "
                f"{levels}, or its number from 0 (-1: unknown)."
            )
        out[i] = int(number)
    return torch.from_numpy(out)
