"""Rules about protected groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.core.examples import SPLITS
from isonomy.data.profile import leakage
from isonomy.data.profile.description import Caution, Groups
from isonomy.data.profile.findings import (
    SURE,
    Findings,
    count_clients,
    indicator_text,
    mixed_groups,
    percent,
    shortened,
)
from isonomy.data.profile.measures import association, margin
from isonomy.data.profile.statistics import Mask

WIDE, VERY_WIDE = 0.05, 0.1  # margin of a rate: interpret gaps with care; gaps mean nothing
BASE = 0.05  # difference of label shares between groups


def small_groups(at: Findings) -> Iterator[Caution]:
    """Groups that are too small for a gap between rates to mean anything."""
    split = SPLITS.index(at.evaluated)
    small: list[tuple[int, str]] = []  # rows, group
    thin: list[tuple[int, str]] = []  # the same for a group with a label
    for groups in at.groups:
        cells = groups.counts[:, split].sum(0)  # [labels, levels]
        for g, level in enumerate(groups.levels):
            rows, least = int(cells[:, g].sum()), int(cells[:, g].argmin())
            if margin(rows) > WIDE:
                small.append((rows, f"{groups.name} {level} has {rows:,}"))
            elif at.labels and margin(cells[least, g]) > VERY_WIDE:
                who = f"{groups.name} {level} with '{at.labels[least]}' has {cells[least, g]:,}"
                thin.append((int(cells[least, g]), who))
    if small:
        known = float(margin(min(small)[0]))
        yield Caution(
            "small-group",
            3 if known > VERY_WIDE else 2,
            f"Groups are small in the {at.evaluated} rows "
            f"({shortened([s for _, s in sorted(small)])}). Their rates have a margin of "
            f"±{known:.2f} (95 %), so a smaller gap may be chance; merge groups, or evaluate on "
            "more rows.",
        )
    if thin:
        known = float(margin(min(thin)[0]))
        yield Caution(
            "small-cell",
            2,
            f"Groups have few {at.evaluated} rows of a label "
            f"({shortened([s for _, s in sorted(thin)])}). Rates given the label (equal "
            f"opportunity, equalised odds) have a margin of ±{known:.2f} (95 %), so a smaller gap "
            "may be chance; evaluate on more rows.",
        )


def lacking_groups(at: Findings) -> Iterator[Caution]:
    """Clients without rows of a group."""
    worst: list[tuple[int, Groups, int]] = []
    lacking: Mask = np.zeros(len(at.names), dtype=np.bool_)
    for groups in at.groups:
        train = groups.counts[:, 0].sum(1)  # [K, levels]
        absent = (train == 0) & (train.sum(0) > 0)
        lacking |= absent.any(1)
        level = int(absent.sum(0).argmax())
        worst.append((int(absent[:, level].sum()), groups, level))
    if not lacking.any():
        return
    number, groups, level = max(worst, key=lambda one: one[0])
    which = np.flatnonzero(groups.counts[:, 0].sum(1)[:, level] == 0)
    rest = f"; {lacking.sum()} clients lack some group" if lacking.sum() > number else ""
    yield Caution(
        "group-absent",
        2,
        f"{count_clients(at, which)} no rows of {groups.name} {groups.levels[level]}{rest}. Gaps "
        "within these clients are undefined, and methods that balance groups within clients have "
        "no effect there; measure gaps over all clients together.",
    )


def group_shift(at: Findings) -> Iterator[Caution]:
    """Group shares differ between clients."""
    mixed = {groups.name: text for groups, text in mixed_groups(at)}
    if mixed:
        name = min(mixed, key=lambda one: one.count("*"))
        more = f" (as do those of {shortened([n for n in mixed if n != name])})"
        yield Caution(
            "group-shift",
            2,
            f"Group shares of {name} differ between clients{more * (len(mixed) > 1)}: "
            f"{mixed[name]}. A gap between groups is partly a gap between clients; compare both.",
        )


def base_rates(at: Findings) -> Iterator[Caution]:
    """Label shares differ between groups."""
    texts, gaps = [], []
    for groups in at.groups if len(at.labels) > 1 else ():
        cells = groups.counts[:, 0].sum(0).astype(np.float64)  # [labels, levels]
        there = np.flatnonzero(margin(cells.sum(0)) <= VERY_WIDE)
        if len(there) < 2 or association(cells).p > SURE:
            continue
        rates = cells[:, there] / cells[:, there].sum(0)
        apart = rates.max(1) - rates.min(1)
        label = len(at.labels) - 1 if len(at.labels) == 2 else int(apart.argmax())
        if apart[label] >= BASE:
            high, low = (groups.levels[there[i]] for i in (rates[label].argmax(),
                                                           rates[label].argmin()))  # fmt: skip
            gaps.append(f"{apart[label]:.2f}")
            texts.append(
                f"'{at.labels[label]}' is the label of {percent(rates[label].max())} of "
                f"{groups.name} {high} and {percent(rates[label].min())} of {low}"
            )
    if texts:
        gap = f"a demographic-parity gap of {gaps[0]}"
        if len(gaps) > 1:
            gap = f"demographic-parity gaps of {', '.join(gaps)}"
        yield Caution(
            "base-rate",
            1,
            f"{'; '.join(texts)}. Perfect predictions would have {gap}; decide which notion of "
            "fairness fits before you compare methods by it.",
        )


def proxies(at: Findings) -> Iterator[Caution]:
    """Features that reveal a protected group."""
    shown, names = [], []
    for a, groups in enumerate(at.groups):
        for one in leakage.of_groups(at.statistics, a):
            names.append(groups.name)
            level = f"{groups.name} {groups.levels[one.level]}"
            if one.auc > 1 - 1e-9:
                shown.append(f"{indicator_text(at, one)} is {level} itself")
            elif one.share is not None:
                part = percent(one.share)
                shown.append(f"{part} of the rows with {indicator_text(at, one)} are {level}")
            else:
                shown.append(
                    f"'{at.columns[one.column]}' reveals {level} (AUC about {one.auc:.2f})"
                )
    if shown:
        which = shortened(list(dict.fromkeys(names)))
        yield Caution(
            "proxy",
            2,
            f"Features reveal {which}: {shortened(shown)}. A model can use {which} through them; "
            "drop these features too if it must not.",
        )
