"""Warnings about the data before anything is trained; each rule is one function.

A rule yields nothing, or a warning with the numbers and what to do about it. Clients are counted
and only a few are named. docs/data-profile.md explains the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from isonomy.data.profile import rules_clients, rules_groups, rules_labels
from isonomy.data.profile.description import Caution
from isonomy.data.profile.findings import Findings

Rule = Callable[[Findings], Iterator[Caution]]


def warnings_of(found: Findings) -> tuple[Caution, ...]:
    """Return all warnings, the most important first."""
    found_by_rules = [caution for rule in RULES for caution in rule(found)]
    return tuple(sorted(found_by_rules, key=lambda caution: -caution.weight))


def loading(at: Findings) -> Iterator[Caution]:
    """Warnings of the data set's loader."""
    yield from (Caution("loading", 2, text) for text in at.loading_warnings)


RULES: tuple[Rule, ...] = (
    rules_labels.unlearnable,
    rules_clients.unmeasured,
    rules_labels.leaks,
    rules_labels.imbalance,
    rules_groups.small_groups,
    rules_clients.concept_shift,
    loading,
    rules_clients.small_clients,
    rules_groups.lacking_groups,
    rules_labels.label_shift,
    rules_labels.one_label,
    rules_labels.at_one_client,
    rules_clients.dominant,
    rules_clients.feature_shift,
    rules_groups.group_shift,
    rules_groups.proxies,
    rules_groups.base_rates,
    rules_labels.constants,
)
"""The order of warnings with equal weight."""
