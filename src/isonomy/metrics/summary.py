"""The flat, stably named numbers of a run, what each means and which way is better.

Names: `accuracy` and `loss` are over all examples of all clients together;
`client.VALUE.SUMMARY` is how a per-client value is spread over clients; `group.NAME.METRIC`
compares the groups of protected attribute NAME over all clients' examples together. With
`:low` and `:high` a name is an end of its bootstrap confidence interval over clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.core.examples import Attribute
from isonomy.errors import ConfigError, unknown
from isonomy.metrics import group
from isonomy.metrics.client import (
    SUMMARIES,
    Better,
    client_accuracy,
    client_loss,
    percentiles,
    resamples,
    spread,
)
from isonomy.metrics.counts import Counts, Floats, Tally, ratio, with_everyone

LEVEL = 0.95
"""The confidence level of the intervals that `summarise` adds."""


@dataclass(frozen=True)
class _Metric:
    of: Callable[[Tally], Floats]
    better: Better
    meaning: str  # goes on from whose examples they are
    classes: bool = True  # whether it needs classes, so is left out for regression


_ONE_VS_REST = "; with more than two classes the largest such gap over classes, each against rest"

GROUP: dict[str, _Metric] = {
    "demographic_parity": _Metric(
        group.demographic_parity,
        "lower",
        "the largest minus the smallest share predicted positive between the groups of {name}"
        + _ONE_VS_REST,
    ),
    "demographic_parity_overall": _Metric(
        group.demographic_parity_overall,
        "lower",
        "the largest distance between the share predicted positive in a group of {name} and "
        "that share among everyone" + _ONE_VS_REST,
    ),
    "equal_opportunity": _Metric(
        group.equal_opportunity,
        "lower",
        "the largest minus the smallest true positive rate between the groups of {name}"
        + _ONE_VS_REST,
    ),
    "equal_opportunity_overall": _Metric(
        group.equal_opportunity_overall,
        "lower",
        "the largest distance between the true positive rate of a group of {name} and that of "
        "everyone" + _ONE_VS_REST,
    ),
    "equalised_odds": _Metric(
        group.equalised_odds,
        "lower",
        "the larger of two differences, largest minus smallest between the groups of {name}: of "
        "true positive rates and of false positive rates" + _ONE_VS_REST,
    ),
    "max_loss": _Metric(
        group.max_loss, "lower", "the largest mean loss of a group of {name}", classes=False
    ),
    "max_loss_given_label": _Metric(
        group.max_loss_given_label,
        "lower",
        "the largest mean loss over pairs of a group of {name} and a label",
    ),
    "min_accuracy": _Metric(
        group.min_accuracy, "higher", "the smallest accuracy of a group of {name}"
    ),
    "hypervolume": _Metric(
        group.hypervolume,
        "higher",
        "the area between the point (error, demographic_parity_overall of {name}) and (1, 1)",
    ),
}
"""The group metrics of `summarise`, by the last part of their name."""

_SPREAD: dict[str, tuple[Better | None, str]] = {
    "mean": (None, "the mean of the clients' {value}"),
    "variance": ("lower", "the variance of the clients' {value} (divided by their number)"),
    "std": ("lower", "the standard deviation of the clients' {value} (divided by their number)"),
    "worst5": (None, "the mean of the {bad} clients' {value}, 5 % of the clients rounded up"),
    "worst10": (None, "the mean of the {bad} clients' {value}, 10 % of the clients rounded up"),
    "best5": (None, "the mean of the {good} clients' {value}, 5 % of the clients rounded up"),
    "jain": ("higher", "Jain's index of the clients' {value}, 1 when all are equal"),
    "gini": ("lower", "the Gini coefficient of the clients' {value}, 0 when all are equal"),
    "entropy": (
        "higher",
        "the entropy of the clients' shares of the total {value}, divided by the logarithm of "
        "their number, 1 when all are equal",
    ),
    "cv": ("lower", "the standard deviation of the clients' {value} divided by its mean"),
}

_PLAIN: dict[str, tuple[Better | None, str]] = {
    "accuracy": ("higher", "{over}, the share predicted right."),
    "loss": ("lower", "{over}, the mean loss."),
    "size": (None, "The number of examples the client has in the split."),
    "client.number": (None, "The number of clients with examples in the split."),
    "client.left_out": (
        None,
        "The number of clients without examples in the split, which client.* leaves out.",
    ),
    "excess": (None, "The client's test loss minus the loss of its surrogate best model."),
    "faa": (
        "lower",
        "The largest difference between two clients' excess risk, test loss minus surrogate loss.",
    ),
    "hypervolume": (
        "higher",
        "The volume dominated by the front, all coordinates minimised, up to the reference point.",
    ),
    "hv": (
        "higher",
        "The hypervolume of the client's front on its own examples: the volume that its points, "
        "(error, demographic_parity_overall) unless front.objectives says otherwise, dominate "
        "below (1, ..., 1).",
    ),
    "hv.local": (
        "higher",
        "The mean over clients of the hypervolume of the client's own front on its own examples; "
        "a method of one model has a front of one point.",
    ),
    "hv.global": (
        "higher",
        "The hypervolume of the front on all clients' examples together: of the front of all "
        "clients together if the method has one; if it has only clients' own, the mean over "
        "clients of theirs; of a method of one model a client, of the one point they make.",
    ),
}

BY_LEVEL: dict[str, tuple[Better | None, str]] = {
    "accuracy": ("higher", "share predicted right"),
    "loss": ("lower", "mean loss"),
    "positive_rate": (None, "share predicted positive"),
    "true_positive_rate": (None, "share predicted positive of the positive examples"),
    "false_positive_rate": (None, "share predicted positive of the negative examples"),
}
"""What `summarise` gives for each group; the rates with two classes only."""

_ALL = "Over all clients' examples together"
_CLIENT_NAME = re.compile(rf"client\.(accuracy|loss)\.({'|'.join(SUMMARIES)})")
_LEVEL_NAME = re.compile(rf"group\.(.+?)\.({'|'.join(BY_LEVEL)})\.(.+)")
_GROUP_NAME = re.compile(rf"group\.(.+)\.({'|'.join(GROUP)})")
_END_NAME = re.compile(r"(.+):(low|high)")


def summarise(counts: Counts, *, bootstrap: int = 0, seed: int = 0) -> dict[str, float]:
    """Every number of a run's evaluation, by name; NaN where it is undefined.

    For regression the accuracies and everything that needs classes are left out. With
    `bootstrap` replicates each name also has `NAME:low` and `NAME:high`, the ends of its 95 %
    percentile interval over clients.

    >>> page = {"counts": [[[[3, 1], [0, 4]]], [[[1, 1], [1, 1]]]], "loss": [[[2, 2]], [[2, 2]]]}
    >>> found = summarise(Counts.of(page))
    >>> found["accuracy"], found["client.accuracy.mean"], found["client.accuracy.worst5"]
    (0.75, 0.6875, 0.5)
    """
    found = {
        "client.number": float((counts.sizes > 0).sum()),
        "client.left_out": float((counts.sizes == 0).sum()),
    }
    found |= _point(counts)
    if bootstrap:
        for name, ends in intervals(counts, replicates=bootstrap, seed=seed).items():
            found[f"{name}:low"], found[f"{name}:high"] = ends
    return found


def intervals(
    counts: Counts,
    names: Sequence[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap percentile intervals over clients, for all or some names of `summarise`.

    Whole clients with examples are drawn with replacement, as many as there are, and every
    metric is computed on what was drawn; for pooled metrics a client drawn twice brings its
    examples twice. Replicates where a metric is undefined are left out of its interval.
    """
    present = counts.sizes > 0
    values = _client_values(counts, present)
    point = _point(counts)
    chosen = list(point) if names is None else list(names)
    for name in chosen:
        if name not in point:
            raise ConfigError(unknown("metric with an interval", name, point))
    tally = counts.tally()
    sums = np.stack([tally.label, tally.predicted, tally.hit, tally.loss], axis=1)[present]
    flat = sums.reshape(len(sums), int(np.prod(sums.shape[1:])))
    need_pooled = any(not name.startswith("client.") for name in chosen)
    need_client = {v for v in values if any(name.startswith(f"client.{v}.") for name in chosen)}
    drawn: dict[str, list[Floats]] = {name: [] for name in chosen}
    for index in resamples(len(sums), replicates, seed):
        found: dict[str, Floats] = {}
        if need_pooled:
            # A diverged loss is not finite; times a client not drawn it gives NaN, rightly.
            with np.errstate(invalid="ignore", over="ignore"):
                total = (_times(index) @ flat).reshape(len(index), *sums.shape[1:])
            found |= _pooled(Tally(*np.moveaxis(total, 1, 0)), counts.attributes)
        for value in need_client:
            found |= _spread(value, values[value][index])
        for name in chosen:
            drawn[name].append(found[name])
    return {
        name: percentiles(np.concatenate(drawn[name] or [np.zeros(0)]), point[name], level)
        for name in chosen
    }


def per_client(counts: Counts) -> dict[str, NDArray]:
    """A column for each thing known of each client; NaN where it is undefined.

    `size`, `accuracy` and `loss` of its own examples, and for each protected attribute
    `group.NAME.METRIC` between the groups inside that client.
    """
    columns: dict[str, NDArray] = {"size": counts.sizes}
    columns |= _client_values(counts, np.ones(len(counts), dtype=np.bool_))
    for attribute in counts.attributes:
        tally = counts.tally(attribute.name)
        for name, metric in GROUP.items():
            if not (metric.classes and counts.regression):
                columns[f"group.{attribute.name}.{name}"] = metric.of(tally)
    return columns


def describe(name: str, *, inside_client: bool = False) -> str:
    """One sentence that says exactly what a metric is, and between whom.

    `inside_client` is for the columns of `per_client`, measured on one client's own examples.

    >>> describe("client.accuracy.worst10")
    "The mean of the lowest-accuracy clients' accuracy, 10 % of the clients rounded up."
    """
    over = "Over the client's own examples" if inside_client else _ALL
    return _read(name)[1].format(over=over)


def better(name: str) -> Better | None:
    """Which way a metric improves; None where neither way is better in itself."""
    return _read(name)[0]


def _read(name: str) -> tuple[Better | None, str]:
    """The direction and the sentence, with {over} for whose examples they are."""
    if name in _PLAIN:
        return _PLAIN[name]
    if at := _CLIENT_NAME.fullmatch(name):
        value, summary = at.groups()
        direction, meaning = _SPREAD[summary]
        ends = ("lowest", "highest") if value == "accuracy" else ("highest", "lowest")
        text = meaning.format(value=value, bad=f"{ends[0]}-{value}", good=f"{ends[1]}-{value}")
        return direction or _direction(value), f"{text[0].upper()}{text[1:]}."
    if at := _GROUP_NAME.fullmatch(name):
        metric = GROUP[at[2]]
        return metric.better, f"{{over}}, {metric.meaning.format(name=_escaped(at[1]))}."
    if at := _END_NAME.fullmatch(name):
        which = "Lower" if at[2] == "low" else "Upper"
        inner = _read(at[1])[1]
        return None, f"{which} end of the bootstrap percentile interval over clients of: {inner}"
    if at := _LEVEL_NAME.fullmatch(name):
        direction, what = BY_LEVEL[at[2]]
        who = f"group {_escaped(at[3])} of {_escaped(at[1])}"
        return direction, f"{{over}}, the {what} in {who}."
    known = [
        *_PLAIN,
        *(f"client.accuracy.{s}" for s in SUMMARIES),
        *(f"group.NAME.{g}" for g in GROUP),
    ]
    raise ConfigError(unknown("metric", name, known))


def _escaped(word: str) -> str:
    """A user's word with its braces doubled, for `str.format`."""
    return word.replace("{", "{{").replace("}", "}}")


def _direction(value: str) -> Better:
    return "higher" if value == "accuracy" else "lower"


def _point(counts: Counts) -> dict[str, float]:
    found = _pooled(counts.pooled().tally(), counts.attributes)
    for value, each in _client_values(counts, counts.sizes > 0).items():
        found |= _spread(value, each)
    return {name: float(np.squeeze(value)) for name, value in found.items()}


def _pooled(tally: Tally, attributes: tuple[Attribute, ...]) -> dict[str, Floats]:
    """The metrics of `accuracy`, `loss` and `group.*`, with the tally's leading axes."""
    regression = tally.classes == 1
    found: dict[str, Floats] = {}
    if not regression:
        found["accuracy"] = ratio(tally.hit.sum(-1), tally.size)[..., 0]
    found["loss"] = ratio(tally.loss.sum(-1), tally.size)[..., 0]
    start = 1
    for attribute in attributes:
        stop = start + len(attribute.levels)
        part = tally.only(with_everyone(slice(start, stop)))
        start = stop
        prefix = f"group.{attribute.name}"
        for name, metric in GROUP.items():
            if not (metric.classes and regression):
                found[f"{prefix}.{name}"] = metric.of(part)
        by_level = {"loss": group.group_loss(part)}
        if not regression:
            by_level["accuracy"] = group.group_accuracy(part)
        if tally.classes == 2:
            by_level["positive_rate"] = group.positive_rate(part)
            by_level["true_positive_rate"] = group.true_positive_rate(part)
            by_level["false_positive_rate"] = group.false_positive_rate(part)
        for value, each in by_level.items():
            for at, level in enumerate(attribute.levels):
                found[f"{prefix}.{value}.{level}"] = each[..., at]
    return found


def _client_values(counts: Counts, present: NDArray[np.bool_]) -> dict[str, Floats]:
    losses = {"loss": client_loss(counts)[present]}
    return losses if counts.regression else {"accuracy": client_accuracy(counts)[present], **losses}


def _spread(value: str, at: Floats) -> dict[str, Floats]:
    found = spread(at, better=_direction(value))
    return {f"client.{value}.{name}": each for name, each in found.items()}


def _times(index: NDArray[np.int64]) -> Floats:
    """How often each client was drawn in each replicate."""
    replicates, clients = index.shape
    flat = index + clients * np.arange(replicates)[:, None]
    times = np.bincount(flat.ravel(), minlength=replicates * clients)
    return times.reshape(replicates, clients).astype(np.float64)
