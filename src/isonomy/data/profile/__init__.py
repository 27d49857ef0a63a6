"""Who holds what: sizes, labels and groups of every client, how clients differ, what to beware of.

Clients answer with counts and sums (`portrait`); the rest is arithmetic on them: distances of
shares (`measures`), whether features and their relation to the label differ (`shift`), features
that give too much away (`tells`), and sentences about all of it (`warnings`).

>>> from isonomy.data import load
>>> said = describe(load("synthetic", clients=4, seed=1))
>>> said.sizes().sum() == said.facts()["split_sizes"]["train"]
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
from isonomy.data.profile.findings import Found
from isonomy.data.profile.statistics import Integers, Portrait, ask
from isonomy.data.profile.warnings import warn

__all__ = ["Caution", "Description", "Groups", "Measure", "describe"]

_known: WeakKeyDictionary[Federation, dict[Split, Description]] = WeakKeyDictionary()


def describe(federation: Federation, evaluated: Split = "test") -> Description:
    """All of it; `evaluated` is the split that measurements are made on.

    Where that split is empty, the training rows are taken. Asked again about the same federation,
    the answer is at hand.
    """
    if not int(federation.sizes(evaluated).sum()):
        evaluated = "train"
    known = _known.setdefault(federation, {})
    if evaluated not in known:
        known[evaluated] = _describe(federation, ask(federation), evaluated)
    return known[evaluated]


def _describe(federation: Federation, portrait: Portrait, evaluated: Split) -> Description:
    names = tuple(federation.name(k) for k in range(len(federation)))
    labels = tuple(federation.labels or map(str, range(federation.classes)))
    groups = tuple(
        Groups(attribute.name, attribute.levels, counts)
        for attribute, counts in zip(federation.attributes, portrait.groups, strict=True)
    )
    same = leakage.themselves(portrait)
    found = Found(
        portrait=portrait,
        names=names,
        labels=labels,
        groups=groups,
        columns=_columns(federation, portrait),
        evaluated=evaluated,
        label=_mixed(portrait.rows),
        group=[_mixed(at.counts[:, 0].sum(1)) for at in groups],
        moved=shift.moved(portrait, same),
        given=shift.moved_given_label(portrait, same),
        related=shift.related(portrait),
        told=tuple(getattr(federation, "warnings", ())),
    )
    return Description(
        source=federation.source,
        names=names,
        labels=labels,
        counts=portrait.labels,
        groups=groups,
        features=int(federation.x[:1].numel()),
        looked_at=len(portrait.shape.features),
        evaluated=evaluated,
        measures=tuple(_measures(found)),
        clients=_clients(found),
        warnings=warn(found),
    )


def _columns(federation: Federation, portrait: Portrait) -> list[str]:
    """What the columns looked at are called: features, then groups."""
    whole = federation.features
    looked = portrait.shape.features.tolist()
    names = [whole[j] if j < len(whole) else f"feature {j}" for j in looked]
    for a, level in portrait.shape.indicators:
        attribute = federation.attributes[a]
        names.append(f"{attribute.name}={attribute.levels[level]}")
    return names


def _mixed(counts: Integers) -> tuple[measures.Distances, measures.Association]:
    return measures.distances(counts), measures.association(counts)


def _measures(found: Found) -> Iterator[Measure]:
    """How clients differ, from sizes to relations."""
    sizes = found.portrait.rows.sum(1)
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
        asked.append(("features given the label", "spread of means, sd", found.given))
        asked.append(("relation to the label", "spread of class differences, sd", found.related))
    else:
        asked.append(("relation to the target", "spread of slopes, sd", found.related))
    for about, name, one in asked:
        where = found.columns[one.column] if one.spread else ""
        yield Measure(about, name, one.spread, where, p=one.p)
        differ, tested = len(one.findings), int(one.tested.sum())
        who = found.names[one.findings[0].client] if differ else ""
        yield Measure(about, f"clients that differ, of {tested} tested", float(differ), who)


def _clients(found: Found) -> dict[str, Sequence[float]]:
    """Measures of each client: distances beyond chance, and effects that passed the tests."""
    out: dict[str, Sequence[float]] = {}
    if found.labels:
        out["label"] = _beyond(found.label[0])
    for at, (far, _) in zip(found.groups, found.group, strict=True):
        out[f"group.{at.name}"] = _beyond(far)
    given = found.given if found.labels else found.moved
    out["feature"] = given.effects.tolist()
    out["relation"] = found.related.effects.tolist()
    return out


def _beyond(far: measures.Distances) -> list[float]:
    out: list[float] = np.maximum(far.variation - far.chance, 0).tolist()
    return out
