"""What a person should check about tables whose columns were guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

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
    """What is odd about the files themselves."""
    out = []
    names = [client_name(path) for path in look.paths]
    if look.folder and all(part_of(name) >= 0 for name in names):
        out.append(
            f"Each file is taken as a client, but these are called {listed(names)}: if they are "
            "parts of one table, join them and name the column that says which with `split`."
        )
    header = look.headers[0]
    own = {one.name: one.values for one in seen}
    odd = [name for name in header if _NUMBER.fullmatch(name) or name in own[name]]
    if 2 * len(odd) >= len(header) and odd != [str(i) for i in range(len(odd))]:
        out.append(
            f"The first line of {look.paths[0].name} looks like values ({listed(header, 3)}); a "
            "table begins with a line of column names, so add one if it is missing."
        )
    some = [one.name for one in seen if one.absent]
    for name in some:
        twins = [other for other in some if other != name and name_words(other) == name_words(name)]
        twins = twins or difflib.get_close_matches(name, [s for s in some if s != name], 1, 0.85)
        if twins and some.index(name) < some.index(twins[0]):
            out.append(
                f"Columns '{name}' and '{twins[0]}' are not in all tables; if they are the same, "
                "write them alike."
            )
    if look.encoding != "utf-8":
        out.append(
            f"The files are not UTF-8; they were read as {look.encoding}. Check that names "
            "with letters such as ä or é are right."
        )
    return out


def client_doubts(one: ColumnProfile) -> list[str]:
    if one.held == one.rows:
        return []
    return [f"'{one.name}' is empty in some rows, which then are nobody's; fill it in."]


def sentinel_doubts(features: Sequence[ColumnProfile]) -> list[str]:
    """Numbers that stand for nothing, by habit: 999, -9."""
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
                    f"'{one.name}' is {text} in {one.values[text]:,} rows; if that stands for a "
                    "missing value, leave those places empty."
                )
    return out
