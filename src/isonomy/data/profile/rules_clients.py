"""Rules about clients: too small, too large, or unlike the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import (
    Found,
    counted,
    in_words,
    mixed_groups,
    percent,
    relation,
    turned_round,
)
from isonomy.data.profile.measures import chance_spread

SMALL = 30  # rows below which a rate is known to no better than 0.18
SPREAD = 0.03  # of accuracies between clients, by chance
MOST = 0.5  # of all rows at one client


def unmeasured(at: Found) -> Iterator[Caution]:
    """Clients without rows to measure on."""
    clients = np.flatnonzero(at.test.sum(1) == 0)
    if len(clients):
        yield Caution(
            "no-rows",
            3,
            f"{counted(at, clients)} no {at.evaluated} rows: left out of every measure over "
            "clients; give them some, or say so beside the results.",
        )


def small_clients(at: Found) -> Iterator[Caution]:
    """Clients whose accuracies differ by chance alone."""
    rows = at.test.sum(1)
    train = at.portrait.rows.sum(1)
    few = np.flatnonzero(train < SMALL)
    total = at.test.sum(0)
    usual = float(total.max() / total.sum()) if at.labels and total.sum() else 0.5
    spread = chance_spread(rows, min(max(usual, 0.5), 0.95))
    said = []
    if at.labels and len(at.names) > 1 and spread >= SPREAD:
        least = int(np.where(rows > 0, rows, rows.max() + 1).argmin())
        most = "" if rows[least] == rows.max() else f" to {rows.max():,}"
        said.append(
            f"Clients are measured on {rows[least]:,}{most} {at.evaluated} rows (median "
            f"{int(np.median(rows)):,}): accuracies of clients that are served alike differ by "
            f"{spread:.2f} (one standard deviation) by chance. A spread of that size is no "
            "unfairness; use more rows, fewer clients or several seeds."
        )
    if len(few):
        said.append(
            f"{counted(at, few)} fewer than {SMALL} training rows: a local model there learns "
            "little."
        )
    if said:
        yield Caution("small-client", 2, " ".join(said))


def dominant(at: Found) -> Iterator[Caution]:
    """One client holds most rows."""
    sizes = at.portrait.rows.sum(1)
    share = sizes.max() / sizes.sum()
    if len(sizes) < 2 or share <= max(MOST, 2 / len(sizes)):
        return
    yield Caution(
        "dominant",
        2,
        f"{at.names[int(sizes.argmax())]} holds {percent(share)} of the training rows: what is "
        "averaged by size is nearly its own model; look at measures over clients, where each "
        "counts once.",
    )


def concept_shift(at: Found) -> Iterator[Caution]:
    """The relation of features to the label is not the same everywhere."""
    if not at.related.findings:
        return
    one = at.related.findings[0]
    clients = [finding.client for finding in at.related.findings]
    turned = [f for f in at.related.findings if turned_round(f)]
    where = counted(at, clients, "differs at")
    advice = "One model cannot suit all: compare" if turned else "Compare one model with"
    reversed = f", and is reversed at {len(turned)}" if turned else ""
    yield Caution(
        "concept-shift",
        3 if turned else 2,
        f"The relation of features to the {'label' if at.labels else 'target'} {where}"
        f"{reversed}: {relation(at, turned[0] if turned else one)}. {advice} personal or "
        "clustered methods. (Other groups of people, or another range of them under the same "
        "rule, can look like this; sums do not tell.)",
    )


def feature_shift(at: Found) -> Iterator[Caution]:
    """Features lie elsewhere, among rows with the same label."""
    shift = at.given if at.labels else at.moved
    if not shift.findings:
        return
    one = shift.findings[0]
    clients = [finding.client for finding in shift.findings]
    alike = " among rows with the same label" if at.labels else ""
    why = "Check units and coding there; if they are right, scale"
    if any(mixed_groups(at)):
        why = "Groups are mixed differently, which may be why; if not, check units, scale"
    yield Caution(
        "feature-shift",
        2,
        f"Features {counted(at, clients, 'lie elsewhere at')}{alike}: "
        f"'{at.columns[one.column]}' is {in_words(at, one, one.own - one.others)} at "
        f"{at.names[one.client]}. {why} features at each client, or compare personal methods.",
    )
