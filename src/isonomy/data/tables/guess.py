"""First guesses at what the columns of a table are, each with its reason.

The rules go by `words` in names and by what was `seen` of the values. A guess is there to be
corrected: `isonomy init` writes each one beside its reason.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from isonomy.data.tables.column_profile import MOST, Seen, same, see
from isonomy.data.tables.columns import Table, as_text, as_words
from isonomy.data.tables.files import client_name
from isonomy.data.tables.name_hints import (
    AMOUNTS,
    CLIENT_ENDS,
    CLIENTS,
    CODES,
    COUNTS,
    IDENTIFIERS,
    LABELS,
    NEGATIVE,
    NO_CLIENT,
    PAST,
    PERSONS,
    POSITIVE,
    PROTECTED,
    SENTINELS,
    SUFFIXES,
    THINGS,
    called,
    is_nothing,
    name_words,
    rank,
)
from isonomy.data.tables.phases import part_of
from isonomy.data.tables.roles import listed
from isonomy.data.tables.sample import Look

AGES = ((30, 60), (30, 50), (30, 45), (40, 65), (50, 70), (60, 75), (70, 80), (18, 40), (6, 12))
MOST_GROUPS = 12  # of a protected column that is not cut
MOST_PROTECTED = 4
_NUMBER = re.compile(r"-?\d+([.,]\d+)?")


# --- the whole ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """What suits so many clients and rows."""

    rounds: int
    batch: int
    lr: float
    hidden: tuple[int, ...] = ()  # of a perceptron; none: a linear model
    cohort: int | None = None


@dataclass(frozen=True)
class Guess:
    """All guesses; `why` has an option's reason, `doubts` what a person should look at.

    `drop` and `categorical` hold a reason for each column. `clients` is the number of clients that
    rows of one table are dealt to where no column tells clients apart.
    """

    sizes: Sizes
    label: str = ""
    positive: str = ""
    classes: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    bins: Mapping[str, tuple[int, ...] | int] = field(default_factory=dict)
    client: str = ""
    clients: int = 0
    split: str = ""
    drop: Mapping[str, str] = field(default_factory=dict)
    categorical: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    encoding: str = "utf-8"
    features: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def guess(look: Look) -> Guess:
    """Guess everything about the tables that were looked at."""
    before = see(look)
    seen = [as_number(one) for one in before]
    tables = list(look.tables.values())
    why: dict[str, str] = {}
    doubts = _forms(look, seen)
    drop = {one.name: reason for one in seen if (reason := unusable(one))}
    left = [one for one in seen if one.name not in drop]
    split = guess_split(left, tables)
    client, other_clients = "", []
    if not look.folder:
        found = rank_clients([one for one in seen if one.name != split])
        client, other_clients = (found[0].name if found else ""), found[1:]
        drop.pop(client, None)
    protected, bins, others = guess_protected([s for s in left if s.name not in (client, split)])
    sensitive = {*protected, *others}
    ranked = rank_labels([s for s in left if s.name not in {client, split, *sensitive}])
    label = ranked[0] if ranked else None
    name = label.name if label else ""
    rest = [s for s in left if s.name not in {client, split, name, *protected}]
    for one in rest:
        if client and same(tables, one.name, client):
            drop[one.name] = f"goes with {client} one to one"
        elif name and one.distinct <= MOST and same(tables, one.name, name):
            drop[one.name] = "tells the label exactly; put it back if it is known beforehand"
    rest = [one for one in rest if one.name not in drop]
    used = [by for by in left if by.name in (name, *protected)] + rest
    missing = guess_missing([one for one in before if one.name in {use.name for use in used}])
    categorical, unfit = guess_categorical(used, missing, keep={name, *protected})
    drop |= unfit
    features = tuple(one.name for one in rest if one.name not in drop)

    why["label"], more = label_reason(label, ranked[1:])
    doubts += more
    positive = ""
    classes: tuple[str, ...] = ()
    if label is not None and label.few:
        classes = tuple(label.values)
        positive, why["positive"] = guess_positive(label)
    why["protected"] = protected_reason(protected, others)
    doubts += [text for text in others.values() if text]
    if client:
        shown = f"; others: {_names(other_clients)}" if other_clients else ""
        more_of_them = "" if look.whole else " or more"
        count = f"{_by(seen, client).distinct:,} values{more_of_them}"
        why["client"] = f"{count}, and a usual name{shown}"
        doubts += _client_doubts(_by(seen, client))
    elif not look.folder:
        why["client"] = "no column seems to tell clients apart, so rows are dealt out at random"
        doubts.append(
            "Who holds which row: no column seems to tell clients apart. If one does, name it with "
            "`client` and take `partition` and `clients` out."
        )
    if split:
        why["split"] = "holds train and test"
    why["bins"] = bins_reason(bins)
    why["categorical"] = categorical_reason([s for s in rest if s.name in features], categorical)
    if missing:
        why["missing"] = "texts in columns of numbers, beside the usual ones"
    doubts += _sentinels([s for s in rest if s.name in features])
    number = len(look.paths) if look.folder else _by(seen, client).distinct if client else 0
    dealt = 0 if number else max(2, min(10, look.rows // 50))
    return Guess(
        sizes=guess_sizes(number or dealt, look.rows, not _real(label), len(features)),
        label=name,
        positive=positive,
        classes=classes,
        protected=protected,
        bins=bins,
        client=client,
        clients=dealt,
        split=split,
        drop={one.name: drop[one.name] for one in seen if one.name in drop},
        categorical=categorical,
        missing=missing,
        encoding=look.encoding,
        features=features,
        why=why,
        doubts=tuple(doubts),
    )


def resized(guess: Guess, clients: int, rows: int) -> Guess:
    """With sizes for the clients and rows that there really are, and their number told."""
    regression = not guess.sizes.hidden
    sizes = guess_sizes(clients, rows, not regression, len(guess.features))
    why = dict(guess.why)
    if guess.client:
        why["client"] = re.sub(r"^[\d,]+ values( or more)?", f"{clients:,} values", why["client"])
    return replace(guess, sizes=sizes, why=why)


# --- one rule each --------------------------------------------------------------------------------


def unusable(one: Seen) -> str:
    """Why a column can be nothing but dropped; nothing if it can be of use."""
    if one.absent:
        return f"not at {listed(one.absent, 3)}"
    if one.kind == "empty":
        return "empty"
    if one.kind == "other":
        return "lists or bytes"
    if one.kind == "time" or one.dated:
        return "dates"
    if one.alone:
        return "one value in each file, so it only names the client"
    if one.distinct == 1 and one.held > 0.98 * one.rows:
        return "the same value everywhere"
    if one.held < 20:
        return ""
    share, number = one.apart, one.kind == "number"
    if one.counted:
        return "numbers the rows"
    if not number and share > 0.5 and one.length > 30:
        return "free text"
    if share > 0.9 and (not number or _long_numbers(one)):
        return "another value in nearly every row"
    if number and not one.whole:
        return ""
    words = name_words(one.name)
    named = words and (called(words[-1], IDENTIFIERS) or called(words[0], "id uuid guid"))
    if named and one.distinct > 20 and share > 0.2:
        return "an identifier by its name"
    if called(one.name, PERSONS) and not number and one.distinct > 20 and share > 0.2:
        return "tells who a person is"
    if not number and one.distinct > MOST:
        return f"more than {MOST:,} different texts"
    return ""


def _long_numbers(one: Seen) -> bool:
    """Whole numbers of six or more digits, as many in each: account and phone numbers."""
    if not one.whole or not one.steps:
        return False
    low, high = as_text(one.steps[0]), as_text(one.steps[-1])
    return len(low) == len(high) >= 6


def guess_split(seen: Sequence[Seen], tables: Sequence[Table] = ()) -> str:
    """The column that says train, validation or test in every row, and train in every table."""
    for one in seen:
        parts = {part_of(value) for value in one.values}
        if one.held < one.rows or one.distinct > 3 or not {0, 2} <= parts <= {0, 1, 2}:
            continue
        held = [as_words(table.columns[one.name]) for table in tables]
        if all(0 in {part_of(w.levels[i]) for i in np.flatnonzero(w.counts())} for w in held):
            return one.name
    return ""


def rank_clients(seen: Sequence[Seen]) -> list[Seen]:
    """The columns that may tell clients apart, best first: five rows a client, at the least."""

    def fits(one: Seen) -> bool:
        return (
            (one.kind in ("text", "mixed") or one.whole)
            and 2 <= one.distinct <= one.rows / 5
            and not (one.dated or one.absent)
            and one.held > 0.9 * one.rows
            and client_rank(one.name) > 0
        )

    return sorted(
        (one for one in seen if fits(one)),
        key=lambda one: (-client_rank(one.name), one.held < one.rows, one.at),
    )


def client_rank(name: str) -> int:
    """How much a name says that a column tells clients apart.

    >>> client_rank("hospital_id"), client_rank("home_hospital"), client_rank("time_in_hospital")
    (80, 30, 0)
    """
    if called(name, NO_CLIENT) or any(called(name, words) for words in PROTECTED.values()):
        return 0
    words = name_words(name)
    while len(words) > 1 and called(words[-1], SUFFIXES):
        words = words[:-1]
    if len(words) == 1:
        return rank(words[0], CLIENTS)
    return 30 if words and called(words[-1], CLIENT_ENDS) else 0


def guess_protected(
    seen: Sequence[Seen],
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...] | int], dict[str, str]]:
    """Protected columns, where to cut numbers, and others that might be, with a doubt if any."""
    chosen: list[str] = []
    bins: dict[str, tuple[int, ...] | int] = {}
    others: dict[str, str] = {}
    for kind, words in PROTECTED.items():
        taken = False
        for one in seen:
            named = called(one.name, words) and not called(one.name, THINGS)
            if not named or one.name in (*chosen, *others) or "*" in one.name:
                continue
            if taken:
                others[one.name] = (
                    f"'{one.name}' seems to tell the {kind} too and is a feature; drop it if the "
                    "model should not know."
                )
            elif len(chosen) == MOST_PROTECTED:
                others[one.name] = ""
            elif one.kind == "number" and one.distinct > MOST_GROUPS:
                if kind == "age":
                    bins[one.name] = guess_bins(one.steps)
                    chosen.append(one.name)
                    taken = True
            elif one.distinct > MOST_GROUPS:
                others[one.name] = (
                    f"'{one.name}' has {one.distinct:,} values, too many for groups; join them "
                    "into fewer and name it under protected, or drop it: it is a feature now."
                )
            elif one.distinct >= 2:
                chosen.append(one.name)
                taken = True
    return tuple(chosen), bins, others


def guess_bins(steps: Sequence[float]) -> tuple[int, ...] | int:
    """Usual ages at which every group has at least a tenth of the rows; else three groups.

    >>> guess_bins([float(age) for age in range(101)])
    (30, 60)
    >>> guess_bins([1920.0 + i for i in range(101)])
    3
    """
    for edges in AGES if steps and steps[-1] <= 130 else ():
        shares = [sum(step < edge for step in steps) / len(steps) for edge in edges]
        if all(b - a >= 0.1 for a, b in itertools.pairwise([0.0, *shares, 1.0])):
            return edges
    return 3


def rank_labels(seen: Sequence[Seen]) -> list[Seen]:
    """The columns that may be what is to be predicted, best first."""
    scored = [(label_score(one), one) for one in seen]
    return [one for score, one in sorted(scored, key=lambda p: (-p[0], -p[1].at)) if score > 0]


def label_score(one: Seen) -> float:
    """How much speaks for a column as the label; 0 for nothing, or something against it."""
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


def label_reason(label: Seen | None, others: Sequence[Seen]) -> tuple[str, list[str]]:
    """Why this label, and what to doubt about it."""
    if label is None:
        doubt = (
            "The label: no column looks like it. Put the name of the column to be predicted in "
            "place of LABEL."
        )
        return "none found: put the column to be predicted here", [doubt]
    if label.few:
        reasons = [{2: "two values"}.get(label.distinct, f"{label.distinct} values")]
    else:
        reasons = ["a number" if label.kind == "number" else "texts"]
    usual = rank(label.name, LABELS) or (not label.few and called(label.name, AMOUNTS))
    reasons += ["a usual name"] if usual else []
    reasons += ["last column"] if label.last else []
    shown = f"; others: {_names(others)}" if others else ""
    doubts = []
    if not usual:
        doubts.append(
            f"The label: no column has a usual name; '{label.name}' was taken because it has "
            f"{' and is the '.join(reasons)}."
        )
    rivals = [o for o in others if usual and label_score(o) >= 60]
    if rivals:
        doubts.append(
            f"The label: '{label.name}' was taken, but {_names(rivals)} may be it too; whatever is "
            "not known when one predicts belongs under drop."
        )
    return ", ".join(reasons) + shown, doubts


def guess_positive(label: Seen) -> tuple[str, str]:
    """The value of a label of two that is class 1, and why."""
    values = sorted(label.values, key=_numbers_first)
    if len(values) != 2:
        return "", ""
    for words, flip in ((POSITIVE, False), (NEGATIVE, True)):
        found = [i for i, value in enumerate(values) if value.casefold() in words.split()]
        if len(found) == 1:
            at = 1 - found[0] if flip else found[0]
            return values[at], f"the other is '{values[1 - at]}'"
    more = [value.startswith((">", "≥")) for value in values]
    if any(more) and not all(more):
        at = more.index(True)
        return values[at], f"the other is '{values[1 - at]}'"
    at = min((0, 1), key=lambda i: (label.values[values[i]], -i))
    return values[at], f"rarer than '{values[1 - at]}'"


def _numbers_first(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _real(label: Seen | None) -> bool:
    """Whether a label is a number that is no class."""
    return label is not None and label.kind == "number" and not label.few


def as_number(one: Seen) -> Seen:
    """A column of numbers as such, where all texts in it stand for nothing."""
    if one.kind != "mixed" or not one.odd or not all(is_nothing(text) for text in one.odd):
        return one
    values = {value: n for value, n in one.values.items() if value not in one.odd}
    return replace(
        one,
        kind="number",
        held=one.held - sum(one.values.get(text, 0) for text in one.odd),
        distinct=one.distinct - len(one.odd),
        values=values,
        whole=all(float(value.replace(",", ".")).is_integer() for value in values),
        odd=(),
    )


def guess_missing(seen: Iterable[Seen]) -> tuple[str, ...]:
    """Texts in columns of numbers that stand for nothing."""
    found: dict[str, None] = {}
    for one in seen:
        if one.kind == "mixed" and one.odd and all(is_nothing(text) for text in one.odd):
            found |= dict.fromkeys(one.odd)
    return tuple(found)


def guess_categorical(
    seen: Sequence[Seen], missing: Sequence[str] = (), keep: Iterable[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Columns whose numbers are codes, and columns that fit nothing, each with its reason.

    `keep` are columns that are not dropped, whatever they hold.
    """
    codes: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for one in seen:
        if one.kind == "mixed" and not set(one.odd) <= set(missing):
            text = next(text for text in one.odd if text not in missing)
            if one.name in keep or (one.distinct <= MOST and one.apart < 0.5):
                codes[one.name] = f"numbers, and texts such as '{text}'"
            else:
                unfit[one.name] = f"numbers, and texts such as '{text}'"
        elif one.name in keep or one.kind != "number" or not one.whole or one.distinct < 3:
            continue
        elif called(one.name, CODES) and not called(one.name, COUNTS):
            if one.distinct <= MOST:
                codes[one.name] = "codes by its name"
            else:
                unfit[one.name] = f"codes by its name, more than {MOST:,}"
    return codes, unfit


def categorical_reason(features: Sequence[Seen], categorical: Mapping[str, str]) -> str:
    """Why these, and which whole numbers with few values stay numbers."""
    few = [
        one.name
        for one in features
        if one.name not in categorical and one.kind == "number" and one.few and one.distinct > 2
    ]
    stay = f"few whole numbers, taken as numbers: {listed(few, 8)}" if few else ""
    said = "numbers that are codes" if categorical else "none" if few else ""
    return "; ".join(text for text in (said, stay) if text)


def protected_reason(protected: Sequence[str], others: Iterable[str]) -> str:
    """Why these columns are protected."""
    rest = list(others)
    shown = f"; others: {listed(rest, 6)}" if rest else ""
    return ("by their names" if protected else "none found") + shown


def bins_reason(bins: Mapping[str, tuple[int, ...] | int]) -> str:
    """What the cuts mean."""
    texts = []
    for name, cut in bins.items():
        if isinstance(cut, int):
            texts.append(f"{name} in {cut} groups of about the same number of rows")
        else:
            edges = " and ".join(str(edge) for edge in cut)
            texts.append(f"groups of {name} begin at {edges}")
    return "; ".join(texts)


def guess_sizes(clients: int, rows: int, classes: bool, features: int) -> Sizes:
    """Rounds, batch and step for a first comparison that takes minutes and not hours."""
    each = rows / max(clients, 1)
    batch = next((b for b, most in ((16, 200), (32, 2_000), (64, 20_000)) if each < most), 128)
    batch = 512 if rows > 2_000_000 else batch
    cohort = max(10, min(50, clients // 10)) if clients > 50 else None
    rounds = 50 if cohort else 30 if rows < 20_000 else 20
    rounds = 10 if rows > 2_000_000 else rounds
    if not classes:  # a squared loss in the label's own unit: small steps of a linear model
        lr = 0.2 / max(features, 2)
        nice = next(n for n in (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0) if n <= lr)
        return Sizes(rounds, batch, nice or 0.0005, (), cohort)
    return Sizes(rounds, batch, 0.1, (32,) if rows < 2_000 else (64,), cohort)


# --- things to look at ----------------------------------------------------------------------------


def _forms(look: Look, seen: Sequence[Seen]) -> list[str]:
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


def _client_doubts(one: Seen) -> list[str]:
    if one.held == one.rows:
        return []
    return [f"'{one.name}' is empty in some rows, which then are nobody's; fill it in."]


def _sentinels(features: Sequence[Seen]) -> list[str]:
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


def _by(seen: Sequence[Seen], name: str) -> Seen:
    return next(one for one in seen if one.name == name)


def _names(seen: Sequence[Seen], most: int = 4) -> str:
    return listed([one.name for one in seen], most)
