"""What a careful statistician would say before anything is trained: a rule a function.

Every rule yields nothing, or a sentence or two with the numbers and what to do about them.
Clients are counted and a few are named, so a thousand clients do not make a thousand lines.
docs/describe.md gives the thresholds and why they are what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from isonomy.data.profile import rules_clients, rules_groups, rules_labels
from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import Found

Rule = Callable[[Found], Iterator[Caution]]


def warn(found: Found) -> tuple[Caution, ...]:
    """All that is to be said, the most important first."""
    said = [caution for rule in RULES for caution in rule(found)]
    return tuple(sorted(said, key=lambda caution: -caution.weight))


def told(at: Found) -> Iterator[Caution]:
    """What the loader had to say."""
    yield from (Caution("loading", 2, text) for text in at.told)


RULES: tuple[Rule, ...] = (
    rules_labels.unlearnable,
    rules_clients.unmeasured,
    rules_labels.leaks,
    rules_labels.imbalance,
    rules_groups.small_groups,
    rules_clients.concept_shift,
    told,
    rules_clients.small_clients,
    rules_groups.lacking_groups,
    rules_labels.label_shift,
    rules_labels.one_label,
    rules_labels.held_by_one,
    rules_clients.dominant,
    rules_clients.feature_shift,
    rules_groups.group_shift,
    rules_groups.proxies,
    rules_groups.base_rates,
    rules_labels.constants,
)
"""Of equal weight, what is said first."""
