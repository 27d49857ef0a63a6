"""Rules about labels, and about features that reveal them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.data.profile import leakage
from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import (
    Findings,
    count_clients,
    differing_shares,
    indicator_text,
    percent,
    shortened,
)

USUAL = 0.9  # accuracy of a constant prediction
FLAT = 0.2  # share of constant features


def unlearnable(at: Findings) -> Iterator[Caution]:
    """Labels without training rows."""
    train = at.statistics.rows.sum(0)
    missing = [label for label, rows in zip(at.labels, train, strict=False) if not rows]
    if missing:
        rows = int(at.statistics.labels.sum((0, 1))[train == 0].sum())
        what = "label has" if len(missing) == 1 else "labels have"
        yield Caution(
            "label-absent",
            3,
            f"{len(missing)} {what} no training row ({shortened(missing)}) but {rows:,} other "
            f"row{'s' * (rows != 1)}. No model can learn it; remove these rows or change the "
            "split.",
        )


def leaks(at: Findings) -> Iterator[Caution]:
    """Features that reveal the label."""
    found = leakage.of_labels(at.statistics)
    if not found:
        return
    one = found[0]
    others = len(found) - 1
    more = f" ({others} other feature{'s' * (others > 1)} may, too)" if others else ""
    if not at.labels:
        text = f"'{at.columns[one.column]}' has a correlation of {one.auc:.3f} with the target"
    elif one.share is not None:
        text = (
            f"{percent(one.share)} of the rows with {indicator_text(at, one)} are "
            f"'{at.labels[one.level]}'"
        )
    else:
        text = (
            f"'{at.columns[one.column]}' alone separates '{at.labels[one.level]}' from the rest "
            f"(AUC about {one.auc:.3f})"
        )
    yield Caution(
        "leak",
        3,
        f"A feature may reveal the label: {text}{more}. Check that it is known before the label; "
        "if not, drop it, because all methods will look equally good with it.",
    )


def imbalance(at: Findings) -> Iterator[Caution]:
    """A constant prediction is nearly always right."""
    rows = at.test.sum(0)
    if not at.labels or not rows.sum() or rows.max() < USUAL * rows.sum():
        return
    label = at.labels[int(rows.argmax())]
    yield Caution(
        "imbalance",
        3,
        f"Always predicting '{label}' is right for {percent(rows.max() / rows.sum())} of the "
        f"{at.evaluated} rows, so accuracy means little. Compare losses and the rates of each "
        "group.",
    )


def at_one_client(at: Findings) -> Iterator[Caution]:
    """Labels that only one client has."""
    holders = (at.statistics.rows > 0).sum(0)
    alone = np.flatnonzero(holders == 1)
    if not at.labels or len(at.names) < 2 or not len(alone):
        return
    who = [at.names[int(at.statistics.rows[:, i].argmax())] for i in alone]
    what = "label is" if len(alone) == 1 else "labels are"
    pairs = [f"'{at.labels[int(i)]}' at {name}" for i, name in zip(alone, who, strict=True)]
    yield Caution(
        "label-at-one",
        2,
        f"{len(alone)} {what} present at one client only ({shortened(pairs)}). It is learned only "
        "if that client takes part; use all clients in every round, or change the partition.",
    )


def one_label(at: Findings) -> Iterator[Caution]:
    """Clients with a single label."""
    clients = np.flatnonzero((at.statistics.rows > 0).sum(1) == 1)
    if not at.labels or not len(clients):
        return
    yield Caution(
        "one-label",
        2,
        f"{count_clients(at, clients)} one label only. A model trained there alone always predicts "
        "that label and looks perfect on its own rows; evaluate local models on all rows, and "
        "prefer methods with shared models.",
    )


def label_shift(at: Findings) -> Iterator[Caution]:
    """Label shares differ between clients."""
    if not at.labels:
        return
    shown = differing_shares(at, *at.label, at.statistics.rows, [f"'{name}'" for name in at.labels])
    if shown:
        yield Caution(
            "label-shift",
            2,
            f"Label shares differ between clients: {shown}. Local training moves clients in "
            "different directions; use few local steps, or a method such as fedprox.",
        )


def constants(at: Findings) -> Iterator[Caution]:
    """Features that are constant."""
    numbers = leakage.constant(at.statistics, "number")
    every = np.concatenate([numbers, leakage.constant(at.statistics, "indicator")])
    width = len(at.statistics.shape.features)
    many = len(every) > FLAT * width
    plain = len(numbers) and width <= 1000  # some pixels of images are always dark
    if many or plain:
        shown = every if many else numbers
        what = "feature is" if len(shown) == 1 else "features are"
        yield Caution(
            "constant",
            1,
            f"{len(shown)} {what} the same in all training rows "
            f"({shortened([at.columns[int(j)] for j in shown])}) and carry no information. "
            "Drop them, or check that they were read correctly.",
        )
