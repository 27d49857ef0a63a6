"""Rules about protected groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isonomy.core.examples import SPLITS
from isonomy.data.profile import leakage
from isonomy.data.profile.description import Caution, Groups
from isonomy.data.profile.findings import SURE, Found, counted, mixed_groups, percent, some, valued
from isonomy.data.profile.measures import association, margin
from isonomy.data.profile.statistics import Mask

WIDE, VERY_WIDE = 0.05, 0.1  # margins of a rate: read gaps with care; gaps mean nothing
BASE = 0.05  # difference of label shares between groups


def small_groups(at: Found) -> Iterator[Caution]:
    """Groups on which a rate is not known well enough for a gap to mean anything."""
    split = SPLITS.index(at.evaluated)
    small: list[tuple[int, str]] = []  # rows, whose
    thin: list[tuple[int, str]] = []  # the same of a group with a label
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
            f"Groups are small on the {at.evaluated} rows ({some([s for _, s in sorted(small)])}):"
            f" a rate is known to ±{known:.2f} there (95 %), so a smaller gap may be chance; merge "
            "groups, or measure on more rows.",
        )
    if thin:
        known = float(margin(min(thin)[0]))
        yield Caution(
            "small-cell",
            2,
            f"Groups have few {at.evaluated} rows of a label "
            f"({some([s for _, s in sorted(thin)])}): rates given the label (equal opportunity, "
            f"equalised odds) are known to ±{known:.2f} there (95 %), so a smaller gap may be "
            "chance; measure on more rows.",
        )


def lacking_groups(at: Found) -> Iterator[Caution]:
    """Clients where a group does not occur."""
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
    rest = f"; {lacking.sum()} lack some group" if lacking.sum() > number else ""
    yield Caution(
        "group-absent",
        2,
        f"{counted(at, which)} nobody of {groups.name} {groups.levels[level]}{rest}: gaps inside "
        "such a client are undefined, and a method that balances groups within clients does "
        "nothing there; measure over all clients together.",
    )


def group_shift(at: Found) -> Iterator[Caution]:
    """Clients' groups are mixed differently."""
    mixed = {groups.name: text for groups, text in mixed_groups(at)}
    if mixed:
        name = min(mixed, key=lambda one: one.count("*"))
        more = f" (so are those of {some([n for n in mixed if n != name])})"
        yield Caution(
            "group-shift",
            2,
            f"Groups of {name} are mixed differently between clients{more * (len(mixed) > 1)}: "
            f"{mixed[name]}. A gap between groups is partly a gap between clients; look at both.",
        )


def base_rates(at: Found) -> Iterator[Caution]:
    """Labels are not equally common among groups."""
    said, gaps = [], []
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
            said.append(
                f"'{at.labels[label]}' holds for {percent(rates[label].max())} of {groups.name} "
                f"{high} and {percent(rates[label].min())} of {low}"
            )
    if said:
        gap = f"a demographic-parity gap of {gaps[0]}"
        if len(gaps) > 1:
            gap = f"demographic-parity gaps of {', '.join(gaps)}"
        yield Caution(
            "base-rate",
            1,
            f"{'; '.join(said)}: perfect predictions would have {gap}, so decide which notion of "
            "fairness fits before comparing by it.",
        )


def proxies(at: Found) -> Iterator[Caution]:
    """Features that give a protected group away."""
    shown, names = [], []
    for a, groups in enumerate(at.groups):
        for one in leakage.of_groups(at.portrait, a):
            names.append(groups.name)
            level = f"{groups.name} {groups.levels[one.level]}"
            if one.auc > 1 - 1e-9:
                shown.append(f"{valued(at, one)} is {level} itself")
            elif one.share is not None:
                part = percent(one.share)
                shown.append(f"{part} of the rows with {valued(at, one)} are {level}")
            else:
                shown.append(f"'{at.columns[one.column]}' tells {level} (AUC about {one.auc:.2f})")
    if shown:
        which = some(list(dict.fromkeys(names)))
        yield Caution(
            "proxy",
            2,
            f"Features give {which} away: {some(shown)}. A model does not need to be told "
            f"{which} to know it; drop these features too if it must not.",
        )
