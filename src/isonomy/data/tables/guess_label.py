"""Guess which column is the label, and which of its values is the positive class."""

from __future__ import annotations

from collections.abc import Sequence

from isonomy.data.tables.column_profile import ColumnProfile
from isonomy.data.tables.columns import numbers_first
from isonomy.data.tables.name_hints import (
    AMOUNTS,
    LABELS,
    NEGATIVE,
    PAST,
    POSITIVE,
    called,
    rank,
)
from isonomy.data.tables.roles import listed


def rank_labels(seen: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """Return the columns that may be the label, best first."""
    scored = [(label_score(one), one) for one in seen]
    return [one for score, one in sorted(scored, key=lambda p: (-p[0], -p[1].at)) if score > 0]


def label_score(one: ColumnProfile) -> float:
    """Score how likely a column is the label; 0 if it is not a candidate."""
    if one.distinct < 2 or one.held < 0.5 * one.rows:
        return 0.0
    said = float(rank(one.name, LABELS))
    if one.few:
        score = said + (20 if one.distinct == 2 else 4)
        if one.distinct > 2 and not said and not one.last:
            return 0.0
    elif one.kind == "number":
        said = max(said, 30.0 * called(one.name, AMOUNTS))
        score = said - 20 if said else 0.0
    else:
        score = said - 40
    if score <= 0:
        return 0.0
    if called(one.name, PAST):
        score -= 30
    return max(score + 15 * one.last, 1.0)


def label_reason(
    label: ColumnProfile | None, others: Sequence[ColumnProfile]
) -> tuple[str, list[str]]:
    """Return the reason for the label, and doubts."""
    if label is None:
        doubt = (
            "Label: no column looks like a label. Replace LABEL with the name of the column to "
            "predict."
        )
        return "none found; put the column to predict here", [doubt]
    if label.few:
        reasons = [{2: "two values"}.get(label.distinct, f"{label.distinct} values")]
    else:
        reasons = ["a number" if label.kind == "number" else "text"]
    usual = rank(label.name, LABELS) or (not label.few and called(label.name, AMOUNTS))
    reasons += ["a typical name"] if usual else []
    reasons += ["last column"] if label.last else []
    shown = f"; others: {names_of(others)}" if others else ""
    doubts = []
    if not usual:
        doubts.append(
            f"Label: no column has a typical name; '{label.name}' was chosen because it has "
            f"{' and is the '.join(reasons)}."
        )
    rivals = [
        o
        for o in others
        if usual and (label_score(o) >= 60 or (not label.few and o.last and o.distinct == 2))
    ]
    if rivals:
        doubts.append(
            f"Label: '{label.name}' was chosen, but {names_of(rivals)} may also be the label; add "
            "columns that are not known before predicting to drop."
        )
    return ", ".join(reasons) + shown, doubts


def guess_positive(label: ColumnProfile) -> tuple[str, str]:
    """Return the value of a binary label that becomes class 1, and the reason."""
    values = sorted(label.values, key=numbers_first)
    if len(values) != 2:
        return "", ""
    for words, flip in ((POSITIVE, False), (NEGATIVE, True)):
        found = [i for i, value in enumerate(values) if value.casefold() in words.split()]
        if len(found) == 1:
            at = 1 - found[0] if flip else found[0]
            other = label.written(values[1 - at])
            return label.written(values[at]), f"the other value is '{other}'"
    more = [value.startswith((">", "≥")) for value in values]
    if any(more) and not all(more):
        at = more.index(True)
        return values[at], f"the other value is '{values[1 - at]}'"
    at = min((0, 1), key=lambda i: (label.values[values[i]], -i))
    return values[at], f"rarer than '{values[1 - at]}'"


def is_regression(label: ColumnProfile | None) -> bool:
    """Whether a label is a number to predict by regression."""
    return label is not None and label.kind == "number" and not label.few


def names_of(seen: Sequence[ColumnProfile], most: int = 4) -> str:
    """Return the names of columns for a sentence."""
    return listed([one.name for one in seen], most)
