"""What a careful statistician would say before anything is trained: a rule a function.

Every rule yields nothing, or a sentence or two with the numbers and what to do about them.
Clients are counted and a few are named, so a thousand clients do not make a thousand lines.
docs/describe.md gives the thresholds and why they are what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.data.describe import tells
from isonomy.data.describe.description import Caution, Groups
from isonomy.data.describe.measures import (
    Association,
    Distances,
    association,
    chance_spread,
    margin,
)
from isonomy.data.describe.portrait import Integers, Mask, Portrait
from isonomy.data.describe.shift import Finding, Shift
from isonomy.data.federation import SPLITS, Split

WIDE, VERY_WIDE = 0.05, 0.1  # margins of a rate: read gaps with care; gaps mean nothing
SMALL = 30  # rows below which a rate is known to no better than 0.18
SPREAD = 0.03  # of accuracies between clients, by chance
MOST = 0.5  # of all rows at one client
USUAL = 0.9  # of rows that a constant answer gets right
SHIFT = 0.05  # mean total variation beyond chance
SURE = 0.001  # p-value
BASE = 0.05  # difference of label shares between groups
FLAT = 0.2  # of all features constant
_NAMED = 3


@dataclass(frozen=True)
class Found:
    """All that the rules look at."""

    portrait: Portrait
    names: Sequence[str]
    labels: Sequence[str]
    groups: Sequence[Groups]
    columns: Sequence[str]
    evaluated: Split
    label: tuple[Distances, Association]
    group: Sequence[tuple[Distances, Association]]
    moved: Shift
    given: Shift
    related: Shift
    told: Sequence[str]  # by whoever loaded the data

    @property
    def test(self) -> Integers:
        """Rows of each client and label that are measured on [K, L]."""
        out: Integers = self.portrait.labels[:, SPLITS.index(self.evaluated)]
        return out


Rule = Callable[[Found], Iterator[Caution]]


def warn(found: Found) -> tuple[Caution, ...]:
    """All that is to be said, the most important first."""
    said = [caution for rule in RULES for caution in rule(found)]
    return tuple(sorted(said, key=lambda caution: -caution.weight))


# --- labels --------------------------------------------------------------------------------------


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
            f"{len(missing)} {what} no training row ({_some(missing)}) and {rows:,} others: "
            "no model can learn it, so leave it out or split the rows anew.",
        )


def leaks(at: Found) -> Iterator[Caution]:
    """Features that give the label away."""
    told = tells.of_labels(at.portrait)
    if not told:
        return
    one = told[0]
    more = f" (so do {len(told) - 1} more)" if len(told) > 1 else ""
    if not at.labels:
        said = f"'{at.columns[one.column]}' has a correlation of {one.auc:.3f} with the target"
    elif one.share is not None:
        said = (
            f"{_percent(one.share)} of the rows with {_valued(at, one)} are "
            f"'{at.labels[one.level]}'"
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
        f"To answer '{label}' always is right for {_percent(rows.max() / rows.sum())} of the "
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
        f"{len(alone)} {what} held by one client only ({_some(pairs)}): what is learned of it "
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
        f"{_clients(at, clients)} one label only: a model trained there alone always gives that "
        "answer and looks perfect on its own rows; judge local models by all rows, and prefer "
        "methods that share.",
    )


def label_shift(at: Found) -> Iterator[Caution]:
    """Clients' labels are mixed differently."""
    if not at.labels:
        return
    shown = _shares(at, *at.label, at.portrait.rows, [f"'{name}'" for name in at.labels])
    if shown:
        yield Caution(
            "label-shift",
            2,
            f"Labels are mixed differently between clients: {shown}. Each client's training pulls "
            "its own way: take few local steps, or a method made for that, such as fedprox.",
        )


# --- groups --------------------------------------------------------------------------------------


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
            f"Groups are small on the {at.evaluated} rows ({_some([s for _, s in sorted(small)])}):"
            f" a rate is known to ±{known:.2f} there (95 %), so a smaller gap may be chance; merge "
            "groups, or measure on more rows.",
        )
    if thin:
        known = float(margin(min(thin)[0]))
        yield Caution(
            "small-cell",
            2,
            f"Groups have few {at.evaluated} rows of a label "
            f"({_some([s for _, s in sorted(thin)])}): rates given the label (equal opportunity, "
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
        f"{_clients(at, which)} nobody of {groups.name} {groups.levels[level]}{rest}: gaps inside "
        "such a client are undefined, and a method that balances groups within clients does "
        "nothing there; measure over all clients together.",
    )


def group_shift(at: Found) -> Iterator[Caution]:
    """Clients' groups are mixed differently."""
    mixed = {groups.name: text for groups, text in _mixed_groups(at)}
    if mixed:
        name = min(mixed, key=lambda one: one.count("*"))
        more = f" (so are those of {_some([n for n in mixed if n != name])})"
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
                f"'{at.labels[label]}' holds for {_percent(rates[label].max())} of {groups.name} "
                f"{high} and {_percent(rates[label].min())} of {low}"
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
        for one in tells.of_groups(at.portrait, a):
            names.append(groups.name)
            level = f"{groups.name} {groups.levels[one.level]}"
            if one.auc > 1 - 1e-9:
                shown.append(f"{_valued(at, one)} is {level} itself")
            elif one.share is not None:
                part = _percent(one.share)
                shown.append(f"{part} of the rows with {_valued(at, one)} are {level}")
            else:
                shown.append(f"'{at.columns[one.column]}' tells {level} (AUC about {one.auc:.2f})")
    if shown:
        which = _some(list(dict.fromkeys(names)))
        yield Caution(
            "proxy",
            2,
            f"Features give {which} away: {_some(shown)}. A model does not need to be told "
            f"{which} to know it; drop these features too if it must not.",
        )


# --- clients -------------------------------------------------------------------------------------


def unmeasured(at: Found) -> Iterator[Caution]:
    """Clients without rows to measure on."""
    clients = np.flatnonzero(at.test.sum(1) == 0)
    if len(clients):
        yield Caution(
            "no-rows",
            3,
            f"{_clients(at, clients)} no {at.evaluated} rows: left out of every measure over "
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
            f"{_clients(at, few)} fewer than {SMALL} training rows: a local model there learns "
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
        f"{at.names[int(sizes.argmax())]} holds {_percent(share)} of the training rows: what is "
        "averaged by size is nearly its own model; look at measures over clients, where each "
        "counts once.",
    )


def concept_shift(at: Found) -> Iterator[Caution]:
    """The relation of features to the label is not the same everywhere."""
    if not at.related.findings:
        return
    one = at.related.findings[0]
    clients = [finding.client for finding in at.related.findings]
    turned = [f for f in at.related.findings if _turned(f)]
    where = _clients(at, clients, "differs at")
    advice = "One model cannot suit all: compare" if turned else "Compare one model with"
    reversed = f", and is reversed at {len(turned)}" if turned else ""
    yield Caution(
        "concept-shift",
        3 if turned else 2,
        f"The relation of features to the {'label' if at.labels else 'target'} {where}"
        f"{reversed}: {_relation(at, turned[0] if turned else one)}. {advice} personal or "
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
    if any(_mixed_groups(at)):
        why = "Groups are mixed differently, which may be why; if not, check units, scale"
    yield Caution(
        "feature-shift",
        2,
        f"Features {_clients(at, clients, 'lie elsewhere at')}{alike}: "
        f"'{at.columns[one.column]}' is {_apart(at, one, one.own - one.others)} at "
        f"{at.names[one.client]}. {why} features at each client, or compare personal methods.",
    )


# --- features, loading ---------------------------------------------------------------------------


def constants(at: Found) -> Iterator[Caution]:
    """Features that never change."""
    numbers = tells.constant(at.portrait, "number")
    every = np.concatenate([numbers, tells.constant(at.portrait, "indicator")])
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
            f"({_some([at.columns[int(j)] for j in shown])}): nothing can be learned from it; "
            "drop it, or see whether it was read rightly.",
        )


def told(at: Found) -> Iterator[Caution]:
    """What the loader had to say."""
    yield from (Caution("loading", 2, text) for text in at.told)


RULES: tuple[Rule, ...] = (
    unlearnable,
    unmeasured,
    leaks,
    imbalance,
    small_groups,
    concept_shift,
    told,
    small_clients,
    lacking_groups,
    label_shift,
    one_label,
    held_by_one,
    dominant,
    feature_shift,
    group_shift,
    proxies,
    base_rates,
    constants,
)


# --- words ---------------------------------------------------------------------------------------


def _shares(
    at: Found, distances: Distances, tied: Association, counts: Integers, levels: Sequence[str]
) -> str:
    """How much shares differ and where most; nothing when chance or little."""
    far, chance = distances.variation, distances.chance
    mean, usual = float(np.nanmean(far)), float(np.nanmean(chance))
    if tied.p > SURE or mean - usual < SHIFT:
        return ""
    most = int(np.nanargmax(far - chance))
    level = int((counts[most] / counts[most].sum() - counts.sum(0) / counts.sum()).argmax())
    own, whole = counts[most, level] / counts[most].sum(), counts[:, level].sum() / counts.sum()
    return (
        f"they are {mean:.2f} from the whole's on average (total variation; {usual:.2f} would be "
        f"chance), most at {at.names[most]} with {_percent(own)} {levels[level]} against "
        f"{_percent(whole)} in all"
    )


def _relation(at: Found, one: Finding) -> str:
    name, who = at.columns[one.column], at.names[one.client]
    if one.labels is None:
        return (
            f"the slope of the target on '{name}' (both in sd) is {one.own:+.2f} at {who} and "
            f"{one.others:+.2f} elsewhere"
        )
    low, high = (at.labels[label] for label in one.labels)
    return (
        f"'{name}' is {_apart(at, one, one.own)} among '{high}' than among '{low}' at {who}, and "
        f"{_apart(at, one, one.others)} elsewhere"
    )


def _apart(at: Found, one: Finding, value: float) -> str:
    """A difference of means in words: points of an indicator, standard deviations of others."""
    if at.portrait.between[one.column] == 0:
        points = f"{abs(100 * value):.0f}"
        many = "" if points == "1" else "s"
        return f"{points} point{many} {'more common' if value > 0 else 'rarer'}"
    unit = abs((one.own - one.others) / one.effect)
    return f"{abs(value / unit):.1f} sd {'higher' if value > 0 else 'lower'}"


def _mixed_groups(at: Found) -> Iterator[tuple[Groups, str]]:
    """The attributes whose groups are mixed differently, and how."""
    for groups, (far, tied) in zip(at.groups, at.group, strict=True):
        levels = [f"{groups.name} {level}" for level in groups.levels]
        text = _shares(at, far, tied, groups.counts[:, 0].sum(1), levels)
        if text:
            yield groups, text


def _turned(one: Finding) -> bool:
    """Reversed, and neither side near zero."""
    unit = abs((one.own - one.others) / one.effect)
    return one.reversed and min(abs(one.own), abs(one.others)) >= 0.2 * unit


def _clients(at: Found, which: Sequence[int] | Integers, verb: str = "") -> str:
    """How many clients and a few of their names: '3 of 10 clients (a, b, c) have'."""
    said = f"{len(which)} of {len(at.names)} clients ({_some([at.names[int(k)] for k in which])})"
    return f"{verb} {said}" if verb else f"{said} {'has' if len(which) == 1 else 'have'}"


def _valued(at: Found, one: tells.Tell) -> str:
    name = at.columns[one.column]
    return f"'{name}'" if one.value else f"'{name}' at 0"


def _some(items: Sequence[str], most: int = _NAMED) -> str:
    """A few, and how many more.

    >>> _some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    rest = len(items) - most
    if rest == 1:
        most, rest = most + 1, 0
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def _percent(share: float) -> str:
    """With as many digits as keep it from 0 and from 100.

    >>> _percent(0.613), _percent(0.9996), _percent(0.012)
    ('61 %', '99.96 %', '1.2 %')
    """
    at = 100 * float(share)
    for digits in (0, 1, 2):
        said = f"{at:.{digits}f}"
        if at in (0, 100) or (0 < float(said) < 100 and (digits or at >= 10 or at < 0)):
            return f"{said} %"
    return f"{at:.3g} %"
