"""What a metric is called in a heading, what it means, and whether clients or examples count.

The exact sentences and the directions are those of `isonomy.metrics.summary`; here are only
short titles, and words for what a run measures beside its metrics: seconds and bytes.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from isonomy.errors import ConfigError

Better = Literal["higher", "lower"]

_SUMMARIES = {
    "mean": "mean client {value}",
    "variance": "variance of client {value}",
    "std": "std of client {value}",
    "worst5": "worst 5 % client {value}",
    "worst10": "worst 10 % client {value}",
    "best5": "best 5 % client {value}",
    "jain": "Jain index of client {value}",
    "gini": "Gini of client {value}",
    "entropy": "entropy of client {value}",
    "cv": "cv of client {value}",
}
_GAPS = {
    "demographic_parity": "demographic-parity gap",
    "demographic_parity_overall": "demographic-parity gap to everyone",
    "equal_opportunity": "equal-opportunity gap",
    "equal_opportunity_overall": "equal-opportunity gap to everyone",
    "equalised_odds": "equalised-odds gap",
    "max_loss": "worst group loss",
    "max_loss_given_label": "worst group loss given the label",
    "min_accuracy": "worst group accuracy",
}
RATES = {
    "positive_rate": "positive rate",
    "true_positive_rate": "true positive rate",
    "false_positive_rate": "false positive rate",
    "accuracy": "accuracy",
    "loss": "loss",
}
"""What may be known of each group, by the middle part of `group.NAME.RATE.LEVEL`."""

_SHORT = {
    "faa": "FAA",
    "hv": "hypervolume of the front",
    "hv.local": "hypervolume of local fronts",
    "hv.global": "hypervolume of the global front",
}

_COSTS: dict[str, tuple[str, Better, str]] = {
    "seconds": ("seconds", "lower", "Wall-clock seconds of a run on the machine that ran it."),
    "bytes": ("traffic", "lower", "Bytes sent in a run, server to clients and back, all rounds."),
    "bytes.down": ("traffic down", "lower", "Bytes sent from the server to clients, all rounds."),
    "bytes.up": ("traffic up", "lower", "Bytes sent from clients to the server, all rounds."),
}

_CLIENT = re.compile(r"client\.(accuracy|loss)\.([a-z0-9]+)")
_GAP = re.compile(rf"group\.(.+)\.({'|'.join(_GAPS)})")
_RATE = re.compile(rf"group\.(.+?)\.({'|'.join(RATES)})\.(.+)")
_END = re.compile(r"(.+)[:.](?:low|high)")


class Rate(NamedTuple):
    """A metric of one group: `group.ATTRIBUTE.WHAT.LEVEL`."""

    attribute: str
    what: str
    level: str


def title(name: str) -> str:
    """A few words for a heading.

    >>> title("client.accuracy.worst10"), title("group.sex.demographic_parity")
    ('worst 10 % client accuracy', 'demographic-parity gap (sex)')
    """
    if name in _COSTS:
        return _COSTS[name][0]
    if (at := _CLIENT.fullmatch(name)) and at[2] in _SUMMARIES:
        return _SUMMARIES[at[2]].format(value=at[1])
    if at := _GAP.fullmatch(name):
        return f"{_GAPS[at[2]]} ({at[1]})"
    if found := rate(name):
        return f"{RATES[found.what]} of {found.attribute} = {found.level}"
    return _SHORT.get(name, name)


def front_title(name: str) -> str:
    """The metric's name of a coordinate of a front.

    >>> front_title("dp.sex"), front_title("error")
    ('group.sex.demographic_parity_overall', 'error')
    """
    notion, _, attribute = name.partition(".")
    full = {"dp": "demographic_parity_overall", "eo": "equal_opportunity_overall"}.get(notion)
    return f"group.{attribute}.{full}" if full else name


def meaning(name: str) -> str:
    """One sentence: which definition, and between whom."""
    from isonomy.metrics.summary import describe

    if name in _COSTS:
        return _COSTS[name][2]
    try:
        return describe(name)
    except ConfigError:
        if found := rate(name):
            what = RATES[found.what]
            who = f"group {found.level} of {found.attribute}"
            return f"Over all clients' examples together, the {what} in {who}."
        return "A number the run reported under this name."


def better(name: str) -> Better | None:
    """Which way the metric improves; None where neither way is better in itself, or unknown."""
    from isonomy.metrics import summary

    if name in _COSTS:
        return _COSTS[name][1]
    try:
        return summary.better(name)
    except ConfigError:
        return None


def scope(name: str) -> str:
    """Whether each client or each example counts once: 'over clients', 'over examples' or ''."""
    if name in ("faa", "hv.local") or _CLIENT.fullmatch(name):
        return "over clients"
    if name in ("accuracy", "loss", "hv.global") or name.startswith("group."):
        return "over examples"
    return "per run" if name in _COSTS else ""


def rate(name: str) -> Rate | None:
    """The parts of a metric of one group, or None for any other metric."""
    if _GAP.fullmatch(name):
        return None
    at = _RATE.fullmatch(name)
    return Rate(*at.groups()) if at else None


def attribute(name: str) -> str | None:
    """The protected attribute that a metric of gaps between groups is about."""
    at = _GAP.fullmatch(name)
    return at[1] if at else None


def whole(name: str) -> str | None:
    """The metric that this name would be the end of an interval of; None if of none.

    A group may itself be called low or high, so it is an end only if that metric is there too.

    >>> whole("accuracy:low"), whole("group.income.loss.high"), whole("accuracy")
    ('accuracy', 'group.income.loss', None)
    """
    at = _END.fullmatch(name)
    return at[1] if at else None
