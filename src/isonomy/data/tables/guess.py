"""Guess the roles of a table's columns, each with a reason.

The rules use words in the names of columns (`name_hints`) and a summary of the values
(`column_profile`). Guesses are meant to be corrected: `isonomy init` writes each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from isonomy.data.tables.column_profile import MOST, ColumnProfile, one_to_one, profile_columns
from isonomy.data.tables.guess_columns import (
    as_number,
    bins_reason,
    categorical_reason,
    guess_categorical,
    guess_missing,
    guess_protected,
    guess_split,
    known_codes,
    protected_reason,
    rank_clients,
    unusable,
)
from isonomy.data.tables.guess_doubts import (
    client_doubts,
    file_doubts,
    sentinel_doubts,
    spelling_doubts,
    twin_doubts,
)
from isonomy.data.tables.guess_label import (
    guess_positive,
    is_regression,
    label_reason,
    names_of,
    rank_labels,
)
from isonomy.data.tables.guess_twins import twins
from isonomy.data.tables.known_columns import recognised
from isonomy.data.tables.sample import Look


@dataclass(frozen=True)
class Sizes:
    """Settings that suit a number of clients and rows."""

    rounds: int
    batch: int
    lr: float
    hidden: tuple[int, ...] = ()  # of a perceptron; empty: a linear model
    cohort: int | None = None
    seeds: int = 3  # of the comparison


@dataclass(frozen=True)
class Guess:
    """All guesses. `why` has the reason for each option, `doubts` what a person should check.

    `drop` and `categorical` have a reason for each column, `twins` the figure of each feature that
    predicts the label almost perfectly alone. `clients` is the number of clients for a random
    partition of one table, used if no column identifies clients. `exclude` are files that look
    different from the others. `majority` is the share of the most frequent class.
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
    exclude: tuple[str, ...] = ()
    twins: Mapping[str, str] = field(default_factory=dict)
    majority: float = 0.0
    why: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def guess(look: Look) -> Guess:
    """Guess everything about the sampled tables."""
    before = profile_columns(look)
    seen = [as_number(one) for one in before]
    tables = list(look.tables.values())
    survey, known = recognised(one.name for one in seen)
    why: dict[str, str] = {}
    doubts = file_doubts(look, seen)
    drop = {one.name: reason for one in seen if (reason := unusable(one))}
    left = [one for one in seen if one.name not in drop]
    split = guess_split(left, tables)
    client, other_clients = "", []
    if not look.folder:
        found = rank_clients([one for one in seen if one.name != split])
        client, other_clients = (found[0].name if found else ""), found[1:]
        drop.pop(client, None)
    protected, bins, others = guess_protected(
        [s for s in left if s.name not in (client, split)], known
    )
    sensitive = {*protected, *others}
    ranked = rank_labels([s for s in left if s.name not in {client, split, *sensitive}])
    label = ranked[0] if ranked else None
    name = label.name if label else ""
    rest = [s for s in left if s.name not in {client, split, name, *protected}]
    for one in rest:
        if client and one_to_one(tables, one.name, client):
            drop[one.name] = f"corresponds one to one to {client}"
        elif name and one.distinct <= MOST and one_to_one(tables, one.name, name):
            drop[one.name] = (
                "determines the label exactly; keep it only if it is known before predicting"
            )
    rest = [one for one in rest if one.name not in drop]
    used = [by for by in left if by.name in (name, *protected)] + rest
    missing = guess_missing([one for one in before if one.name in {use.name for use in used}])
    categorical, unfit = guess_categorical(used, missing, {name, *protected}, known)
    drop |= unfit
    features = tuple(one.name for one in rest if one.name not in drop)

    why["label"], more = label_reason(label, ranked[1:])
    doubts += more
    positive = ""
    classes: tuple[str, ...] = ()
    majority, alike = 0.0, {}
    if label is not None and label.few:
        classes = tuple(label.written(value) for value in label.values)
        positive, why["positive"] = guess_positive(label)
        majority = max(label.values.values()) / max(sum(label.values.values()), 1)
        alike = twins(tables, [one for one in rest if one.name in features], label)
        doubts += twin_doubts(alike, name)
    codes = known_codes([one for one in seen if one.name in protected], known)
    why["protected"] = protected_reason(protected, others, survey, codes)
    doubts += [text for text in others.values() if text]
    if client:
        shown = f"; others: {names_of(other_clients)}" if other_clients else ""
        more_of_them = "" if look.whole else " or more"
        count = f"{_by(seen, client).distinct:,} values{more_of_them}"
        why["client"] = f"{count}, and a typical name{shown}"
        doubts += client_doubts(_by(seen, client))
    elif not look.folder:
        why["client"] = "no column seems to identify clients, so rows are assigned at random"
        doubts.append(
            "Clients: no column seems to identify them. If one does, name it with `client` and "
            "remove `partition` and `clients`."
        )
    if split:
        why["split"] = "contains train and test"
    why["bins"] = bins_reason(bins)
    why["categorical"] = categorical_reason([s for s in rest if s.name in features], categorical)
    if missing:
        why["missing"] = "texts found in columns of numbers, added to the defaults"
    compared = {client, name, *protected}
    doubts += spelling_doubts([one for one in seen if one.name in compared and one.kind == "text"])
    doubts += sentinel_doubts([s for s in rest if s.name in features])
    number = len(look.paths) if look.folder else _by(seen, client).distinct if client else 0
    assigned = 0 if number else max(2, min(10, look.rows // 50))
    return Guess(
        sizes=guess_sizes(number or assigned, look.rows, not is_regression(label), len(features)),
        label=name,
        positive=positive,
        classes=classes,
        protected=protected,
        bins=bins,
        client=client,
        clients=assigned,
        split=split,
        drop={one.name: drop[one.name] for one in seen if one.name in drop},
        categorical=categorical,
        missing=missing,
        encoding=look.encoding,
        features=features,
        exclude=tuple(path.name for path in look.excluded),
        twins=alike,
        majority=majority,
        why=why,
        doubts=tuple(doubts),
    )


def resized(guess: Guess, clients: int, rows: int) -> Guess:
    """Return the guess with sizes for the actual numbers of clients and rows."""
    regression = not guess.sizes.hidden
    sizes = guess_sizes(clients, rows, not regression, len(guess.features))
    why = dict(guess.why)
    if guess.client:
        why["client"] = re.sub(r"^[\d,]+ values( or more)?", f"{clients:,} values", why["client"])
    return replace(guess, sizes=sizes, why=why)


def guess_sizes(clients: int, rows: int, classes: bool, features: int) -> Sizes:
    """Return rounds, batch size and learning rate for a first comparison that takes minutes."""
    each = rows / max(clients, 1)
    batch = next((b for b, most in ((16, 200), (32, 2_000), (64, 20_000)) if each < most), 128)
    batch = 512 if rows > 2_000_000 else batch
    cohort = max(10, min(50, clients // 10)) if clients > 50 else None
    rounds = 50 if cohort else 30 if rows < 20_000 else 12
    rounds = 10 if rows > 2_000_000 else rounds
    if not classes:  # squared loss in the unit of the label: a linear model with small steps
        lr = 0.2 / max(features, 2)
        nice = next(n for n in (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0) if n <= lr)
        return Sizes(rounds, batch, nice or 0.0005, (), cohort)
    hidden = (32,) if rows < 2_000 else (64,)
    return Sizes(rounds, batch, 0.1, hidden, cohort, seeds=3 if rows < 20_000 else 2)


def _by(seen: Sequence[ColumnProfile], name: str) -> ColumnProfile:
    return next(one for one in seen if one.name == name)
