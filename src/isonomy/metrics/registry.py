"""Every metric in one place: name, title, meaning, which direction is better, how it is computed.

Names are structured:

    accuracy, auc, ...                   over all examples: `POOLED`
    faa, hv.local, ...                   other single numbers: `SINGLE`
    seconds, bytes, ...                  what a run cost: `COSTS`
    client.VALUE.SUMMARY                 how a per-client value varies over clients:
                                         `CLIENT_SUMMARIES`
    group.ATTRIBUTE.METRIC               a comparison of the groups of one protected attribute:
                                         `GROUP_METRICS`
    group.ATTRIBUTE.RATE.LEVEL           a rate of one group: `RATES`
    front.least.OBJECTIVE.COORDINATE     a point at an end of learnt fronts: `FRONT_END`
    client.VALUE.left_out                clients for which a value is undefined: `LEFT_OUT`
    NAME:low, NAME:high                  the ends of a metric's bootstrap interval over clients

`isonomy.metrics.names.parse` turns a name into a `Metric`. To add a metric, write the function that
computes it, add an entry here, and document it in `docs/metrics.md`. A notion added to
`isonomy.core.notions`, or a value added to `VALUES`, gets its metrics without further work.
"""

from __future__ import annotations

from functools import partial

from isonomy.core.notions import NOTIONS, Notion
from isonomy.metrics import client, group, values
from isonomy.metrics.entries import ClientSummary, ClientValue, Single, TallyMetric, Value
from isonomy.metrics.excess import excess, faa
from isonomy.metrics.front import hypervolume, points, volume

# --- one number each ------------------------------------------------------------------------------

VALUES: dict[str, Value] = {
    "balanced_accuracy": Value(
        "balanced accuracy",
        "the mean over classes of the share of the class that is predicted correctly",
        "higher",
        values.balanced_accuracy,
    ),
    "f1": Value(
        "F1",
        "the harmonic mean of precision and recall of class 1; with more than two classes, the "
        "mean of this over classes (macro)",
        "higher",
        values.f1,
        partial=True,
    ),
    "auc": Value(
        "AUC",
        "the area under the ROC curve: the probability that a positive example has a higher score "
        "than a negative one",
        "higher",
        partial=True,
    ),
    "average_precision": Value(
        "average precision",
        "the area under the precision-recall curve, as a sum of precision times the increase of "
        "recall",
        "higher",
        partial=True,
    ),
    "calibration_error": Value(
        "calibration error",
        "the expected calibration error: the mean distance between predicted probability and "
        "share of positive examples, in ten bins of equal width",
        "lower",
    ),
    "brier": Value(
        "Brier score",
        "the mean squared error of the predicted probability of class 1; with more than two "
        "classes, of the sum over classes",
        "lower",
    ),
    "rmse": Value("RMSE", "the root of the mean squared error of the predicted number", "lower"),
    "mae": Value("MAE", "the mean absolute error of the predicted number", "lower"),
    "r2": Value(
        "R2",
        "the coefficient of determination: 1 minus the squared errors over the squared distances "
        "of labels to their mean",
        "higher",
        partial=True,
    ),
}
"""What is measured of everyone, compared between groups, and summarised over clients."""


def _everyone(name: str, value: Value) -> TallyMetric:
    """The metric of a value of everyone."""
    rows, needs = value.rows(name), None if value.compute else name
    return TallyMetric(
        value.title,
        f"{value.meaning}.",
        value.better,
        lambda tally: rows(tally)[..., 0],
        needs=needs,
    )


def _of_group(name: str, value: Value) -> TallyMetric:
    """The metric of a value of each group."""
    rows, needs = value.rows(name), None if value.compute else name
    return TallyMetric(
        value.title,
        value.meaning.removeprefix("the "),
        value.better,
        lambda tally: rows(tally)[..., 1:],
        needs=needs,
    )


def _value_gap(name: str, value: Value) -> TallyMetric:
    """The metric of the largest difference of a value between groups."""
    rows, needs = value.rows(name), None if value.compute else name
    return TallyMetric(
        f"{value.title} gap",
        f"the largest difference in {value.title} between the groups of {{attribute}} (largest "
        f"minus smallest). {value.title} is {value.meaning}.",
        "lower",
        lambda tally: group.value_difference(rows(tally)[..., 1:]),
        needs=needs,
    )


POOLED: dict[str, TallyMetric] = {
    "accuracy": TallyMetric("accuracy", "the share predicted correctly.", "higher", group.accuracy),
    "loss": TallyMetric("loss", "the mean loss.", "lower", group.mean_loss, regression=True),
    **{name: _everyone(name, value) for name, value in VALUES.items()},
    "auc_resolution": TallyMetric(
        "resolution of AUC",
        "the most by which auc can differ from the AUC of scores that are not put into bins: half "
        "the share of pairs of a positive and a negative example that are in the same bin.",
        "lower",
        lambda tally: tally.values["auc_resolution"][..., 0],
        needs="auc_resolution",
    ),
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
    name: ClientValue(POOLED[name], partial=name in VALUES and VALUES[name].partial)
    for name in ("accuracy", "loss", *VALUES)
}
"""The per-client values that are summarised."""

LEFT_OUT = Single(
    "clients without {value}",
    "The number of clients that have examples in the split but for which {value} is undefined, "
    "which client.{name}.* leaves out.",
    None,
    None,
    None,
)
"""By the name `client.VALUE.left_out`, for values that are partial, if there are such clients."""

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
    **{f"{name}_gap": _value_gap(name, value) for name, value in VALUES.items()},
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
    **{name: _of_group(name, value) for name, value in VALUES.items()},
}
"""What is measured of each group, by the middle part of `group.ATTRIBUTE.RATE.LEVEL`."""
