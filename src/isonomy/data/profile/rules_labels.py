"""Rules about labels, and the features that give them away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.data.profile import leakage
from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import Found, counted, differing_shares, percent, some, valued

USUAL = 0.9  # of rows that a constant answer gets right
FLAT = 0.2  # of all features constant


def unlearnable(at: Found) -> Iterator[Caution]:
    """Labels without a training row."""
    train = at.portrait.rows.sum(0)
    missing = [label for label, rows in zip(at.labels, train, strict=False) if not rows]
    if missing:
        rows = int(at.portrait.labels.sum((0, 1))[train == 0].sum())
        what = "label has" if len(missing) == 1 else "labels have"
        yield Caution(
            "label-absent",
            3,
            f"{len(missing)} {what} no training row ({some(missing)}) and {rows:,} others: "
            "no model can learn it, so leave it out or split the rows anew.",
        )


def leaks(at: Found) -> Iterator[Caution]:
    """Features that give the label away."""
    told = leakage.of_labels(at.portrait)
    if not told:
        return
    one = told[0]
    more = f" (so do {len(told) - 1} more)" if len(told) > 1 else ""
    if not at.labels:
        said = f"'{at.columns[one.column]}' has a correlation of {one.auc:.3f} with the target"
    elif one.share is not None:
        said = (
            f"{percent(one.share)} of the rows with {valued(at, one)} are '{at.labels[one.level]}'"
        )
    else:
        said = (
            f"'{at.columns[one.column]}' alone tells '{at.labels[one.level]}' from the rest (AUC "
            f"about {one.auc:.3f})"
        )
    yield Caution(
        "leak",
        3,
        f"A feature may give the label away: {said}{more}. Check that it is known before the "
        "label is; if it is not, drop it, or every method will look alike.",
    )


def imbalance(at: Found) -> Iterator[Caution]:
    """A constant answer is nearly always right."""
    rows = at.test.sum(0)
    if not at.labels or not rows.sum() or rows.max() < USUAL * rows.sum():
        return
    label = at.labels[int(rows.argmax())]
    yield Caution(
        "imbalance",
        3,
        f"To answer '{label}' always is right for {percent(rows.max() / rows.sum())} of the "
        f"{at.evaluated} rows: accuracy says little here, so compare losses and the rates of each "
        "group.",
    )


def held_by_one(at: Found) -> Iterator[Caution]:
    """Labels that one client holds alone."""
    holders = (at.portrait.rows > 0).sum(0)
    alone = np.flatnonzero(holders == 1)
    if not at.labels or len(at.names) < 2 or not len(alone):
        return
    who = [at.names[int(at.portrait.rows[:, i].argmax())] for i in alone]
    what = "label is" if len(alone) == 1 else "labels are"
    pairs = [f"'{at.labels[int(i)]}' at {name}" for i, name in zip(alone, who, strict=True)]
    yield Caution(
        "label-at-one",
        2,
        f"{len(alone)} {what} held by one client only ({some(pairs)}): what is learned of it "
        "hangs on that client taking part; draw all clients in a round, or partition anew.",
    )


def one_label(at: Found) -> Iterator[Caution]:
    """Clients with one label."""
    clients = np.flatnonzero((at.portrait.rows > 0).sum(1) == 1)
    if not at.labels or not len(clients):
        return
    yield Caution(
        "one-label",
        2,
        f"{counted(at, clients)} one label only: a model trained there alone always gives that "
        "answer and looks perfect on its own rows; judge local models by all rows, and prefer "
        "methods that share.",
    )


def label_shift(at: Found) -> Iterator[Caution]:
    """Clients' labels are mixed differently."""
    if not at.labels:
        return
    shown = differing_shares(at, *at.label, at.portrait.rows, [f"'{name}'" for name in at.labels])
    if shown:
        yield Caution(
            "label-shift",
            2,
            f"Labels are mixed differently between clients: {shown}. Each client's training pulls "
            "its own way: take few local steps, or a method made for that, such as fedprox.",
        )


def constants(at: Found) -> Iterator[Caution]:
    """Features that never change."""
    numbers = leakage.constant(at.portrait, "number")
    every = np.concatenate([numbers, leakage.constant(at.portrait, "indicator")])
    width = len(at.portrait.shape.features)
    many = len(every) > FLAT * width
    plain = len(numbers) and width <= 1000  # of images some pixels are always dark
    if many or plain:
        shown = every if many else numbers
        what = "feature is" if len(shown) == 1 else "features are"
        yield Caution(
            "constant",
            1,
            f"{len(shown)} {what} the same in all training rows "
            f"({some([at.columns[int(j)] for j in shown])}): nothing can be learned from it; "
            "drop it, or see whether it was read rightly.",
        )
