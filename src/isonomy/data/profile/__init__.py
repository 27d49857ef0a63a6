"""Describe the data of a federation: sizes, labels and groups of every client, and warnings.

Clients report counts and sums (`statistics`). Everything else is computed from them: distances
between distributions (`measures`), whether features and their relation to the label differ between
clients (`shift`), features that reveal the label or a group (`leakage`), and `warnings`.

>>> from isonomy.data import load
>>> description = describe(load("synthetic", clients=4, seed=1))
>>> description.sizes().sum() == description.facts()["split_sizes"]["train"]
np.True_
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from isonomy.core.examples import Split
from isonomy.data.federation import Federation
from isonomy.data.profile import leakage, measures, shift
from isonomy.data.profile.description import Caution, Description, Groups, Measure
from isonomy.data.profile.findings import Findings
from isonomy.data.profile.statistics import ClientStatistics, Integers, collect
from isonomy.data.profile.warnings import warnings_of

__all__ = ["Caution", "Description", "Groups", "Measure", "describe"]

_known: WeakKeyDictionary[Federation, dict[Split, Description]] = WeakKeyDictionary()


def describe(federation: Federation, evaluated: Split = "test") -> Description:
    """Describe a federation. `evaluated` is the split on which models are evaluated.

    If that split is empty, the training rows are used. The result is cached for each federation.
    """
    if not int(federation.sizes(evaluated).sum()):
        evaluated = "train"
    known = _known.setdefault(federation, {})
    if evaluated not in known:
        known[evaluated] = _describe(federation, collect(federation), evaluated)
    return known[evaluated]


def _describe(
    federation: Federation, statistics: ClientStatistics, evaluated: Split
) -> Description:
    names = tuple(federation.name(k) for k in range(len(federation)))
    labels = tuple(federation.labels or map(str, range(federation.classes)))
    groups = tuple(
        Groups(attribute.name, attribute.levels, counts)
        for attribute, counts in zip(federation.attributes, statistics.groups, strict=True)
    )
    copies = leakage.group_copies(statistics)
    found = Findings(
        statistics=statistics,
        names=names,
        labels=labels,
        groups=groups,
        columns=_columns(federation, statistics),
        evaluated=evaluated,
        label=_heterogeneity(statistics.rows),
        group=[_heterogeneity(at.counts[:, 0].sum(1)) for at in groups],
        moved=shift.moved(statistics, copies),
        moved_given_label=shift.moved_given_label(statistics, copies),
        related=shift.related(statistics),
        loading_warnings=tuple(getattr(federation, "warnings", ())),
    )
    return Description(
        source=federation.source,
        names=names,
        labels=labels,
        counts=statistics.labels,
        groups=groups,
        features=int(federation.x[:1].numel()),
        looked_at=len(statistics.shape.features),
        evaluated=evaluated,
        measures=tuple(_measures(found)),
        clients=_clients(found),
        warnings=warnings_of(found),
    )


def _columns(federation: Federation, statistics: ClientStatistics) -> list[str]:
    """Return the names of the analysed columns: features, then groups."""
    whole = federation.features
    looked = statistics.shape.features.tolist()
    names = [whole[j] if j < len(whole) else f"feature {j}" for j in looked]
    for a, level in statistics.shape.indicators:
        attribute = federation.attributes[a]
        names.append(f"{attribute.name}={attribute.levels[level]}")
    return names


def _heterogeneity(counts: Integers) -> tuple[measures.Distances, measures.Association]:
    return measures.distances(counts), measures.association(counts)


def _measures(found: Findings) -> Iterator[Measure]:
    """Compute how clients differ, from sizes to relations with the label."""
    sizes = found.statistics.rows.sum(1)
    yield Measure("sizes", "Gini coefficient", measures.gini(sizes))
    largest = int(sizes.argmax())
    yield Measure("sizes", "largest share", sizes[largest] / sizes.sum(), found.names[largest])
    mixed: list[tuple[str, tuple[measures.Distances, measures.Association]]] = []
    if found.labels:
        mixed.append(("labels", found.label))
    mixed += [(at.name, one) for at, one in zip(found.groups, found.group, strict=True)]
    for about, (far, tied) in mixed:
        usual = float(np.nanmean(far.chance))
        most = int(np.nanargmax(far.variation - far.chance))
        mean = float(np.nanmean(far.variation))
        yield Measure(about, "total variation to the whole, mean", mean, chance=usual)
        yield Measure(
            about,
            "total variation to the whole, most",
            float(far.variation[most]),
            found.names[most],
            float(far.chance[most]),
        )
        yield Measure(
            about, "Jensen-Shannon distance to the whole, mean", float(np.nanmean(far.shannon))
        )
        yield Measure(about, "Cramér's V with clients, corrected", tied.v, p=tied.p)
    asked = [("features", "spread of means between clients, sd", found.moved)]
    if found.labels:
        asked.append(("features given the label", "spread of means, sd", found.moved_given_label))
        asked.append(("relation to the label", "spread of class differences, sd", found.related))
    else:
        asked.append(("relation to the target", "spread of slopes, sd", found.related))
    for about, name, one in asked:
        where = found.columns[one.column] if one.spread else ""
        yield Measure(about, name, one.spread, where, p=one.p)
        differ, tested = len(one.findings), int(one.tested.sum())
        who = found.names[one.findings[0].client] if differ else ""
        yield Measure(about, f"clients that differ, of {tested} tested", float(differ), who)


def _clients(found: Findings) -> dict[str, Sequence[float]]:
    """Compute measures of each client: distances beyond chance, and significant effects."""
    out: dict[str, Sequence[float]] = {}
    if found.labels:
        out["label"] = _beyond_chance(found.label[0])
    for at, (far, _) in zip(found.groups, found.group, strict=True):
        out[f"group.{at.name}"] = _beyond_chance(far)
    given = found.moved_given_label if found.labels else found.moved
    out["feature"] = given.effects.tolist()
    out["relation"] = found.related.effects.tolist()
    return out


def _beyond_chance(far: measures.Distances) -> list[float]:
    out: list[float] = np.maximum(far.variation - far.chance, 0).tolist()
    return out
