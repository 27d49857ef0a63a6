"""What the methods recorded in every round, such as an angle, a choice or the clients' weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, View, drawn
from isonomy.report.figures.rounds import over_rounds
from isonomy.report.svg import Axis
from isonomy.runs.record import Record


def draw(records: list[Record]) -> list[View]:
    """Any recorded entry over rounds: one line per method, and a band over its seeds."""
    found = runs.methods(records)
    each = [entry.get("recorded") or {} for record in records for entry in record.rounds]
    shown: dict[tuple[str, str | None], str] = {}  # a name and a word of it, with their title
    for name, value in (item for entry in each for item in entry.items()):
        title = name.replace("_", " ")
        if isinstance(value, str):
            shown[name, value] = f"{title} = {value}"
        else:
            largest = isinstance(value, Mapping)
            shown.setdefault((name, None), f"{title}, largest of a client" if largest else title)
    return drawn(
        View(title, over_rounds(found, Axis(title), partial(_read, name=name, word=word)))
        for (name, word), title in shown.items()
    )


def _read(entry: Mapping[str, Any], name: str, word: str | None) -> float | None:
    recorded = entry.get("recorded") or {}
    value = recorded.get(name)
    if name not in recorded:
        return None
    if word is not None:
        return float(value == word)
    if isinstance(value, Mapping):
        return max((runs.number(at) for at in value.values() if at is not None), default=None)
    return runs.number(value)


FIGURE = Kind(
    name="recorded",
    title="Recorded by the methods",
    caption=(
        "What a method recorded in each round: means over seeds, and bands of one sample standard "
        "deviation to either side. Of a choice the share of runs that made it is shown, of numbers "
        "per client the largest; rounds.jsonl has all of them."
    ),
    draw=draw,
)
