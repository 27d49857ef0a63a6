"""What a person should check about tables whose columns were guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from isonomy.data.tables.column_profile import MOST, ColumnProfile
from isonomy.data.tables.columns import as_text
from isonomy.data.tables.files import client_name
from isonomy.data.tables.name_hints import (
    SENTINELS,
    name_words,
)
from isonomy.data.tables.phases import part_of
from isonomy.data.tables.roles import listed
from isonomy.data.tables.sample import Look

_NUMBER = re.compile(r"-?\d+([.,]\d+)?")


def file_doubts(look: Look, seen: Sequence[ColumnProfile]) -> list[str]:
    """Return what seems wrong with the files."""
    out = []
    if look.excluded:
        number = len(look.excluded) + len(look.paths)
        out.append(
            f"{len(look.excluded)} of {number} files look different from the others and are "
            f"excluded: {listed([path.name for path in look.excluded], 8)}. If they are tables of "
            "clients, give them the same columns and remove them from exclude; otherwise move them "
            "to another folder."
        )
    names = [client_name(path) for path in look.paths]
    if look.folder and all(part_of(name) >= 0 for name in names):
        out.append(
            f"Each file is read as one client, but these are called {listed(names)}. If they are "
            "parts of one table, merge them and add a column that `split` names."
        )
    header = look.headers[0]
    own = {one.name: one.values for one in seen}
    odd = [name for name in header if _NUMBER.fullmatch(name) or name in own[name]]
    if 2 * len(odd) >= len(header) and odd != [str(i) for i in range(len(odd))]:
        out.append(
            f"The first line of {look.paths[0].name} looks like values ({listed(header, 3)}); "
            "add a header line with column names if it is missing."
        )
    some = [one.name for one in seen if one.absent]
    for name in some:
        twins = [other for other in some if other != name and name_words(other) == name_words(name)]
        twins = twins or difflib.get_close_matches(name, [s for s in some if s != name], 1, 0.85)
        if twins and some.index(name) < some.index(twins[0]):
            out.append(
                f"Columns '{name}' and '{twins[0]}' are not in all tables; if they are the same "
                "column, give them the same name."
            )
    if look.encoding != "utf-8":
        out.append(
            f"The files are not UTF-8 and were read as {look.encoding}; check that letters such as "
            "ä or é are correct."
        )
    return out


def twin_doubts(twins: Mapping[str, str], label: str) -> list[str]:
    """Return the features that predict the label almost perfectly alone."""
    return [
        f"'{name}' alone predicts '{label}' almost perfectly ({figure}); if it is the label under "
        "another name or known only after it, add it to drop."
        for name, figure in twins.items()
    ]


def client_doubts(one: ColumnProfile) -> list[str]:
    """Return what seems wrong with the column that identifies clients."""
    if one.held == one.rows:
        return []
    return [f"'{one.name}' is empty in some rows, which then belong to no client; fill it in."]


def spelling_doubts(columns: Sequence[ColumnProfile]) -> list[str]:
    """Return columns of clients or groups with values that differ only in case or in spaces."""
    out = []
    for one in columns:
        alike: dict[str, list[str]] = {}
        for value in one.values:
            alike.setdefault(" ".join(value.casefold().split()), []).append(value)
        found = [sorted(same) for same in alike.values() if len(same) > 1]
        if found:
            text = "; ".join(" and ".join(f"'{value}'" for value in same) for same in found[:3])
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            out.append(
                f"'{one.name}' has values that differ only in case or in spaces and are read as "
                f"different ones: {text}{more}. Write them in the same way if they are the same."
            )
    return out


def sentinel_doubts(features: Sequence[ColumnProfile]) -> list[str]:
    """Return columns with numbers that often mean a missing value, such as 999 and -9."""
    out = []
    for one in features:
        if one.kind != "number" or not one.whole or one.distinct > MOST:
            continue
        numbers = sorted(float(value) for value in one.values)
        for value, beside in ((numbers[0], numbers[1:2]), (numbers[-1], numbers[-2:-1])):
            text = as_text(value)
            far = beside and (value > 3 * beside[0] > 0 or value < 0 <= beside[0])
            if text in SENTINELS and far and one.values[text] >= 3:
                out.append(
                    f"'{one.name}' is {text} in {one.values[text]:,} rows; if that means a missing "
                    "value, leave it empty in the tables."
                )
    return out
