"""Every metric in one place: name, title, meaning, which direction is better, how it is computed.

Names are structured:

    accuracy, loss                       over all examples: `POOLED`
    faa, hv.local, ...                   other single numbers: `SINGLE`
    seconds, bytes, ...                  what a run cost: `COSTS`
    client.VALUE.SUMMARY                 how a per-client value varies over clients:
                                         `CLIENT_SUMMARIES`
    group.ATTRIBUTE.METRIC               a comparison of the groups of one protected attribute:
                                         `GROUP_METRICS`
    group.ATTRIBUTE.RATE.LEVEL           a rate of one group: `RATES`
    front.least.OBJECTIVE.COORDINATE     a point at an end of learnt fronts: `FRONT_END`
    NAME:low, NAME:high                  the ends of a metric's bootstrap interval over clients

`isonomy.metrics.names.parse` turns a name into a `Metric`. To add a metric, write the function that
computes it, add an entry here, and document it in `docs/metrics.md`. A notion added to
`isonomy.core.notions` gets its metrics without further work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from isonomy.core.notions import NOTIONS, Notion
from isonomy.metrics import client, group
from isonomy.metrics.client import Better
from isonomy.metrics.counts import Counts, Floats, Tally
from isonomy.metrics.excess import excess, faa
from isonomy.metrics.front import hypervolume, points, volume

Over = Literal["clients", "examples", "run"]
"""What is averaged or compared: each client counts once, each example counts once, or each run."""


@dataclass(frozen=True)
class Single:
    """A metric with a fixed name, and the function that computes it (None: read from the run)."""

    title: str
    meaning: str
    better: Better | None
    over: Over | None
    compute: Callable[..., object] | None


@dataclass(frozen=True)
class TallyMetric:
    """A metric that is computed from a `Tally`, which says whose examples they are."""

    title: str
    meaning: str  # continues "Over all clients' examples together, "
    better: Better | None
    compute: Callable[[Tally], Floats]
    regression: bool = False  # True if it is also defined for regression
    binary: bool = False  # True if it is defined for two classes only

    def defined(self, classes: int) -> bool:
        """Whether it is defined for a task with this many classes (0 or 1 for regression)."""
        return classes == 2 if self.binary else classes > 1 or self.regression


@dataclass(frozen=True)
class ClientValue:
    """A value of each client on its own examples, [clients]."""

    better: Better
    compute: Callable[[Counts], Floats]
    regression: bool = False  # True if it is also defined for regression


@dataclass(frozen=True)
class ClientSummary:
    """A summary of a per-client value over clients.

    `better` is None if the direction is that of the value itself.
    """

    title: str
    meaning: str
    better: Better | None
    compute: Callable[[Floats, Better], Floats]


# --- one number each ------------------------------------------------------------------------------

POOLED: dict[str, TallyMetric] = {
    "accuracy": TallyMetric("accuracy", "the share predicted correctly.", "higher", group.accuracy),
    "loss": TallyMetric("loss", "the mean loss.", "lower", group.mean_loss, regression=True),
}
"""Over all examples, whatever client or group they belong to."""

SINGLE: dict[str, Single] = {
    "size": Single(
        "size",
        "The number of examples that the client has in the split.",
        None,
        None,
        lambda counts: counts.sizes,
    ),
    "client.number": Single(
        "client.number",
        "The number of clients with examples in the split.",
        None,
        None,
        lambda counts: float((counts.sizes > 0).sum()),
    ),
    "client.left_out": Single(
        "client.left_out",
        "The number of clients without examples in the split, which client.* leaves out.",
        None,
        None,
        lambda counts: float((counts.sizes == 0).sum()),
    ),
    "excess": Single(
        "excess",
        "The client's test loss minus the loss of its surrogate best model.",
        None,
        None,
        excess,
    ),
    "faa": Single(
        "FAA",
        "The largest difference between two clients' excess risk, test loss minus surrogate loss. "
        "The surrogate is stated with it.",
        "lower",
        "clients",
        faa,
    ),
    "clusters": Single(
        "clusters found",
        "The number of clusters of clients that the method found.",
        None,
        None,
        None,
    ),
    "hypervolume": Single(
        "hypervolume",
        "The volume dominated by the front, all coordinates minimised, up to the reference point.",
        "higher",
        None,
        hypervolume,
    ),
    "hv": Single(
        "hypervolume of the front",
        "The hypervolume of the client's front on its own examples: the volume below (1, ..., 1) "
        "that its points dominate. A point is (error, demographic_parity_overall) unless "
        "front.objectives names other coordinates.",
        "higher",
        None,
        volume,
    ),
    "hv.local": Single(
        "hypervolume of local fronts",
        "The mean over clients of the hypervolume of each client's own front on its own examples; "
        "a method that trains a single model has a front of one point.",
        "higher",
        "clients",
        volume,
    ),
    "hv.global": Single(
        "hypervolume of the global front",
        "The hypervolume of the front on all clients' examples together. If the method has no "
        "common front but one per client, this is the mean over clients of the hypervolumes of "
        "their fronts; if it has one model per client, it is that of the single point which these "
        "models form together.",
        "higher",
        "examples",
        volume,
    ),
}

FRONT_END = Single(
    "{value} where {least} is least",
    "The {value} on all evaluated examples together if each client predicts at the preference of "
    "its own front that has the least {least} on its validation examples, of those that have no "
    "more error there than a constant prediction.",
    "lower",
    "examples",
    points,
)
"""A point at an end of the learnt fronts: `front.least.OBJECTIVE.COORDINATE`."""

COSTS: dict[str, Single] = {
    "seconds": Single(
        "seconds",
        "Wall-clock seconds of a run on the machine that ran it.",
        "lower",
        "run",
        None,
    ),
    "bytes": Single(
        "traffic",
        "Bytes sent in a run between the server and the clients, in both directions, all rounds.",
        "lower",
        "run",
        None,
    ),
    "bytes.down": Single(
        "traffic down",
        "Bytes sent from the server to clients, all rounds.",
        "lower",
        "run",
        None,
    ),
    "bytes.up": Single(
        "traffic up",
        "Bytes sent from clients to the server, all rounds.",
        "lower",
        "run",
        None,
    ),
}
"""What a run cost; `isonomy.report.runs.value` reads it from the run's record."""


# --- client.VALUE.SUMMARY -------------------------------------------------------------------------

CLIENT_VALUES: dict[str, ClientValue] = {
    "accuracy": ClientValue("higher", client.client_accuracy),
    "loss": ClientValue("lower", client.client_loss, regression=True),
}
"""The per-client values that are summarised."""

CLIENT_SUMMARIES: dict[str, ClientSummary] = {
    "mean": ClientSummary(
        "mean client {value}",
        "The mean of the clients' {value}.",
        None,
        lambda at, _: client.mean(at),
    ),
    "variance": ClientSummary(
        "variance of client {value}",
        "The variance of the clients' {value} (divided by the number of clients).",
        "lower",
        lambda at, _: client.variance(at),
    ),
    "std": ClientSummary(
        "std of client {value}",
        "The standard deviation of the clients' {value} (divided by the number of clients).",
        "lower",
        lambda at, _: client.std(at),
    ),
    "worst5": ClientSummary(
        "worst 5 % client {value}",
        "The mean {value} of the {worst}-{value} clients, 5 % of the clients rounded up.",
        None,
        lambda at, better: client.worst(at, 0.05, better=better),
    ),
    "worst10": ClientSummary(
        "worst 10 % client {value}",
        "The mean {value} of the {worst}-{value} clients, 10 % of the clients rounded up.",
        None,
        lambda at, better: client.worst(at, 0.10, better=better),
    ),
    "best5": ClientSummary(
        "best 5 % client {value}",
        "The mean {value} of the {best}-{value} clients, 5 % of the clients rounded up.",
        None,
        lambda at, better: client.best(at, 0.05, better=better),
    ),
    "jain": ClientSummary(
        "Jain index of client {value}",
        "Jain's index of the clients' {value}, 1 if all are equal.",
        "higher",
        lambda at, _: client.jain(at),
    ),
    "gini": ClientSummary(
        "Gini of client {value}",
        "The Gini coefficient of the clients' {value}, 0 if all are equal.",
        "lower",
        lambda at, _: client.gini(at),
    ),
    "entropy": ClientSummary(
        "entropy of client {value}",
        "The entropy of the clients' shares of the total {value}, divided by the logarithm of "
        "the number of clients; 1 if all are equal.",
        "higher",
        lambda at, _: client.entropy(at),
    ),
    "cv": ClientSummary(
        "cv of client {value}",
        "The standard deviation of the clients' {value} divided by its mean.",
        "lower",
        lambda at, _: client.variation(at),
    ),
}
"""By the last part of `client.VALUE.SUMMARY`."""


# --- group.ATTRIBUTE.METRIC -----------------------------------------------------------------------

_RATE_OF_LABEL = {
    None: "share predicted positive",
    1: "true positive rate",
    0: "false positive rate",
}
_MORE_CLASSES = (
    "; with more than two classes, the largest such gap when each class in turn is the positive one"
)


def _difference(notion: Notion) -> TallyMetric:
    """The metric of the largest difference between groups."""
    rates = [_RATE_OF_LABEL[label] for label in notion.given]
    text = (
        f"the largest difference in the {' or in the '.join(rates)} between the groups of "
        "{attribute} (largest minus smallest)"
    )
    title = f"{notion.title.replace(' ', '-')} gap"
    return TallyMetric(
        title, f"{text}{_MORE_CLASSES}.", "lower", partial(group.difference, notion=notion)
    )


def _overall(notion: Notion) -> TallyMetric:
    """The metric of the largest distance of a group to everyone."""
    rate = _RATE_OF_LABEL[notion.label]
    text = (
        f"the largest distance between the {rate} of a group of {{attribute}} and the {rate} of "
        "everyone"
    )
    title = f"{notion.title.replace(' ', '-')} gap to everyone"
    return TallyMetric(
        title, f"{text}{_MORE_CLASSES}.", "lower", partial(group.overall, notion=notion)
    )


def _gaps() -> dict[str, TallyMetric]:
    found = {}
    for notion in NOTIONS.values():
        found[notion.name] = _difference(notion)
        if len(notion.given) == 1:
            found[notion.overall_name] = _overall(notion)
    return found


GROUP_METRICS: dict[str, TallyMetric] = {
    **_gaps(),
    "max_loss": TallyMetric(
        "worst group loss",
        "the largest mean loss of a group of {attribute}.",
        "lower",
        group.max_loss,
        regression=True,
    ),
    "max_loss_given_label": TallyMetric(
        "worst group loss given the label",
        "the largest mean loss over pairs of a group of {attribute} and a label.",
        "lower",
        group.max_loss_given_label,
    ),
    "min_accuracy": TallyMetric(
        "worst group accuracy",
        "the smallest accuracy of a group of {attribute}.",
        "higher",
        group.min_accuracy,
    ),
    "hypervolume": TallyMetric(
        "hypervolume",
        "the area between the point (error, demographic_parity_overall of {attribute}) and (1, 1).",
        "higher",
        group.hypervolume,
    ),
}
"""By the last part of `group.ATTRIBUTE.METRIC`."""

RATES: dict[str, TallyMetric] = {
    "loss": TallyMetric("loss", "mean loss", "lower", group.group_loss, regression=True),
    "accuracy": TallyMetric(
        "accuracy", "share predicted correctly", "higher", group.group_accuracy
    ),
    "positive_rate": TallyMetric(
        "positive rate", "share predicted positive", None, group.positive_rate, binary=True
    ),
    "true_positive_rate": TallyMetric(
        "true positive rate",
        "share predicted positive among the positive examples",
        None,
        group.true_positive_rate,
        binary=True,
    ),
    "false_positive_rate": TallyMetric(
        "false positive rate",
        "share predicted positive among the negative examples",
        None,
        group.false_positive_rate,
        binary=True,
    ),
}
"""What is measured of each group, by the middle part of `group.ATTRIBUTE.RATE.LEVEL`."""
