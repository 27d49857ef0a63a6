"""Rules about clients: too small, too large, or different from the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import (
    Findings,
    count_clients,
    difference_text,
    is_reversed,
    mixed_groups,
    percent,
    relation_text,
)
from isonomy.data.profile.measures import chance_spread

SMALL = 30  # rows below which the margin of a rate is above 0.18
SPREAD = 0.03  # standard deviation of accuracies between clients by chance
MOST = 0.5  # share of all rows at one client


def unmeasured(at: Findings) -> Iterator[Caution]:
    """Clients without rows for evaluation."""
    clients = np.flatnonzero(at.test.sum(1) == 0)
    if len(clients):
        yield Caution(
            "no-rows",
            3,
            f"{count_clients(at, clients)} no {at.evaluated} rows and are not part of any measure "
            "over clients. Give them rows for evaluation, or state this with the results.",
        )


def small_clients(at: Findings) -> Iterator[Caution]:
    """Clients that are so small that their accuracies differ by chance alone."""
    rows = at.test.sum(1)
    train = at.statistics.rows.sum(1)
    few = np.flatnonzero(train < SMALL)
    total = at.test.sum(0)
    usual = float(total.max() / total.sum()) if at.labels and total.sum() else 0.5
    spread = chance_spread(rows, min(max(usual, 0.5), 0.95))
    texts = []
    if at.labels and len(at.names) > 1 and spread >= SPREAD:
        least = int(np.where(rows > 0, rows, rows.max() + 1).argmin())
        most = "" if rows[least] == rows.max() else f" to {rows.max():,}"
        texts.append(
            f"Clients are evaluated on {rows[least]:,}{most} {at.evaluated} rows (median "
            f"{int(np.median(rows)):,}), so their accuracies have a standard deviation of "
            f"{spread:.2f} by chance even if the model serves all equally well. A spread of this "
            "size is not evidence of unfairness; use more rows, fewer clients or several seeds."
        )
    if len(few):
        texts.append(
            f"{count_clients(at, few)} fewer than {SMALL} training rows, too few for a good local "
            "model."
        )
    if texts:
        yield Caution("small-client", 2, " ".join(texts))


def dominant(at: Findings) -> Iterator[Caution]:
    """One client has most rows."""
    sizes = at.statistics.rows.sum(1)
    share = sizes.max() / sizes.sum()
    if len(sizes) < 2 or share <= max(MOST, 2 / len(sizes)):
        return
    yield Caution(
        "dominant",
        2,
        f"{at.names[int(sizes.argmax())]} has {percent(share)} of the training rows and dominates "
        "an average weighted by size. Also compare measures over clients, in which each counts "
        "once.",
    )


def concept_shift(at: Findings) -> Iterator[Caution]:
    """The relation of features to the label differs between clients."""
    if not at.related.findings:
        return
    one = at.related.findings[0]
    clients = [finding.client for finding in at.related.findings]
    turned = [f for f in at.related.findings if is_reversed(f)]
    where = count_clients(at, clients, "differs at")
    advice = "One model cannot fit all: compare" if turned else "Compare a single model with"
    reversed = f", and is reversed at {len(turned)}" if turned else ""
    yield Caution(
        "concept-shift",
        3 if turned else 2,
        f"The relation of features to the {'label' if at.labels else 'target'} {where}"
        f"{reversed}: {relation_text(at, turned[0] if turned else one)}. {advice} personalised "
        "or clustered methods. (A different population under the same rule can look like this "
        "too; sums cannot distinguish them.)",
    )


def feature_shift(at: Findings) -> Iterator[Caution]:
    """Means of features differ among rows with the same label."""
    shift = at.moved_given_label if at.labels else at.moved
    if not shift.findings:
        return
    one = shift.findings[0]
    clients = [finding.client for finding in shift.findings]
    alike = " among rows with the same label" if at.labels else ""
    why = "Check units and coding there; if they are correct, scale"
    if any(mixed_groups(at)):
        why = "Different group shares may be the cause; if not, check units, scale"
    yield Caution(
        "feature-shift",
        2,
        f"Means of features {count_clients(at, clients, 'differ at')}{alike}: "
        f"'{at.columns[one.column]}' is {difference_text(at, one, one.own - one.others)} at "
        f"{at.names[one.client]}. {why} features at each client, or compare personalised methods.",
    )
