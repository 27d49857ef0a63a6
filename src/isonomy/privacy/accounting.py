"""Accounting: the epsilon of everything that was released, by the library dp-accounting.

An `Event` is a Gaussian mechanism: a vector that one client (or one example) changes by at most its
sensitivity, plus Gaussian noise of `multiplier` times this sensitivity. It may act on a Poisson
sample: every client takes part with the same probability, independently of the others, and nobody
learns who did. `limit` is the most examples that such a sample may have (others are left out at
random), `population` the number of examples then.

Neighbouring data sets differ in one client (or example), which is there or is not. Without
sampling, this also covers that it is replaced by an empty contribution while it is known to take
part. Events compose, also if each depends on the results of those before.

Epsilons are upper bounds. Gaussian events alone have an exact value. Otherwise it is the smaller of
the two bounds by Rényi differential privacy (RDP) and by privacy loss distributions (PLD), or that
of RDP alone (`accountant = "rdp"`). Samples of limited size have a bound by PLD only, and count as
inf where it would be far too large to protect anyone.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from isonomy.errors import ConfigError, missing_extra

Accountant = Literal["pld", "rdp"]

ORDERS = (*range(2, 64), 80, 96, 128, 256, 512, 1024)  # of RDP; whole numbers converge
INTERVAL = 1e-3  # of the discretised privacy loss; it is rounded up, so bounds stay bounds
LOOSE = 40.0  # above this RDP bound, the slow PLD is not computed: no such epsilon protects anyone
CLOSE = 2e-3  # relative width at which the search for a noise multiplier ends


@dataclass(frozen=True, order=True)
class Event:
    """One Gaussian release: the noise multiplier, and the sample that it acts on."""

    multiplier: float
    rate: float = 1.0  # probability to be in the sample; 1: everyone, no sampling
    population: int = 0  # with `limit`: the number of examples that are sampled from
    limit: int = 0  # the largest sample; 0: no limit


Events = Mapping[Event, int]
"""How often each event occurred."""


def joint(multipliers: list[float]) -> float:
    """The multiplier of several Gaussian releases about the same sample, taken as one.

    >>> round(joint([3.0, 4.0]), 3)  # 1 / sqrt(1/9 + 1/16)
    2.4
    """
    return 1 / math.sqrt(sum(1 / z**2 for z in multipliers))


def epsilon(events: Events, delta: float, accountant: Accountant = "pld") -> float:
    """The epsilon at this delta of all events together; inf if one has no noise."""
    kept = {event: count for event, count in events.items() if count and event.rate > 0}
    if not kept:
        return 0.0
    if any(event.multiplier <= 0 for event in kept):
        return math.inf
    return _epsilon(tuple(sorted(kept.items())), delta, accountant)


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[tuple[Event, int], ...], delta: float, accountant: Accountant) -> float:
    library = _library()
    if all(event.rate >= 1 for event, _ in events) and accountant == "pld":
        one = joint([event.multiplier / math.sqrt(count) for event, count in events])
        return float(library.get_epsilon_gaussian(one, delta))
    whole = tuple(sorted(_whole(dict(events)).items()))
    loose = _by_rdp(library, whole, delta)
    if whole != events:  # RDP has no bound for samples of limited size; PLD has
        return math.inf if loose > LOOSE else _by_pld(library, events, delta)
    if accountant == "rdp" or loose > LOOSE:
        return loose
    return min(loose, _by_pld(library, events, delta))


def _by_rdp(library: Any, events: tuple[tuple[Event, int], ...], delta: float) -> float:
    from dp_accounting.rdp import RdpAccountant

    made = RdpAccountant(ORDERS, library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, count in events:
        made.compose(_event(library, event), count)
    return float(made.get_epsilon(delta))


def _by_pld(library: Any, events: tuple[tuple[Event, int], ...], delta: float) -> float:
    from dp_accounting.pld import PLDAccountant

    made = PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE, INTERVAL)
    for event, count in events:
        made.compose(_event(library, event), count)
    return float(made.get_epsilon(delta))


def _event(library: Any, event: Event) -> Any:
    gaussian = library.GaussianDpEvent(event.multiplier)
    if event.rate >= 1:
        return gaussian
    if event.limit:
        return library.dp_event.TruncatedSubsampledGaussianDpEvent(
            event.population, event.rate, event.limit, event.multiplier
        )
    return library.PoissonSampledDpEvent(event.rate, gaussian)


def multiplier_for(
    events_of: Callable[[float], Events],
    target: float,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """The smallest noise multiplier, to 0.2 %, whose events have at most this epsilon."""
    if accountant == "pld":  # near what RDP finds, which is fast
        near = _smallest(
            lambda z: epsilon(_whole(events_of(z)), delta, "rdp") <= target, 1.0, 2.0, target
        )
        return _smallest(
            lambda z: epsilon(events_of(z), delta, accountant) <= target, near, 1.05, target
        )
    return _smallest(lambda z: epsilon(events_of(z), delta, accountant) <= target, 1.0, 2.0, target)


def _smallest(enough: Callable[[float], bool], start: float, step: float, target: float) -> float:
    """The smallest multiplier that is enough, to a relative width of CLOSE."""
    low = high = start
    if enough(start):
        while low > 1e-3 and enough(low / step):
            low, step = low / step, step * step
        low, high = low / step, low
    else:
        while not enough(high * step):
            high, step = high * step, step * step
            if high > 1e6:
                raise ConfigError(
                    f"privacy.epsilon = {target:g} would need more than a million times the clip "
                    "as noise; raise epsilon, or lower the number of rounds."
                )
        low, high = high, high * step
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _whole(events: Events) -> Events:
    """The events with samples of any size."""
    out: Counter[Event] = Counter()
    for event, count in events.items():
        out[replace(event, limit=0, population=0)] += count
    return out


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        text = missing_extra("differential privacy", "dp-accounting", "privacy")
        raise ConfigError(text) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders of RDP that are left out
    return dp_accounting
