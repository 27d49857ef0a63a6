"""Evaluation of a round: metrics, the table of clients, and fronts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.capabilities import FindsClusters, LearnsFront, objectives
from isonomy.core.cohort import NoReplies
from isonomy.core.preference import ray_of
from isonomy.engines.base import sample
from isonomy.errors import TrainingError
from isonomy.metrics import Counts, client_loss, constant, excess, faa, per_client, summarise
from isonomy.metrics.errors import has_errors
from isonomy.metrics.front import coordinates
from isonomy.metrics.values import Values
from isonomy.runs import excess as risk
from isonomy.runs import front, surrogate, thresholds
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_answering, values_answering
from isonomy.runs.progress import Progress, found_clusters
from isonomy.runs.results import listed

Metrics = dict[str, float | None]
Columns = dict[str, list[Any]]
NO_ROUND = -1  # in whose place clients are drawn that are evaluated


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one evaluation found, of the clients that answer.

    `metrics` is None, and `clients` empty, if no client answers. `at` says at which points of their
    fronts the clients predicted. `fronts` are those of the evaluated split, and `validation` those
    on which the points were chosen.
    """

    metrics: Metrics | None = None
    clients: Columns = field(default_factory=dict)
    at: str | None = None
    fronts: front.Fronts | None = None
    validation: front.Fronts | None = None
    excess: risk.ExcessRisk | None = None  # at the end only
    only_class: str | None = None  # if the models predict one class for every example
    constant: dict[str, Any] | None = None  # predicting the most frequent class; at the end only
    thresholds: dict[str, Any] | None = None  # of the decisions that were counted, if not .5


def evaluate(setting: Setting, now: Progress, *, last: bool) -> Evaluation:
    """Measure the models of the clients that answer.

    Raises TrainingError if the loss is not finite.
    """
    config = setting.config
    validation = _validation_fronts(setting, now, last)
    preferences = None if validation is None else chosen_preferences(validation)
    rays = None if preferences is None else ray_of(torch.from_numpy(preferences))
    where = (setting.algorithm, now.server, now.engine, config.evaluate.split, now.round, rays)
    values = None
    try:
        used = thresholds.of_round(setting, now)
        asked = (*where, used if now.rule is None else now.rule, evaluated(setting))
        if measures_values(setting) and (last or config.evaluate.scores == "always"):
            counts, values, ids = values_answering(*asked)
        else:
            counts, ids = count_answering(*asked)
    except NoReplies:
        return Evaluation()
    found = front.measured(setting, now.server, now.engine, counts, ids, now.round, last=last)
    metrics, rows = _measured(setting, counts, values, ids, found, now, last)
    if isinstance(setting.algorithm, LearnsFront):
        for j in range(len(setting.algorithm.objectives)):
            given = [math.nan] * len(ids) if preferences is None else preferences[ids, j].tolist()
            rows[f"preference.{j}"] = given
    if last and found is not None and validation is not None:
        metrics |= _ends(setting, found, validation)
    above = _add_excess(setting, counts, ids, now, metrics, rows, rays, last=last)
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in metrics.items()}
    return Evaluation(
        finite,
        rows,
        _stated(setting, preferences),
        found,
        validation,
        above,
        constant.only_class(counts.only(setting.benign[ids]), setting.federation.labels),
        _constant(setting, counts.only(setting.benign[ids])) if last else None,
        None if used is None else thresholds.recorded(setting, used),
    )


def evaluated(setting: Setting) -> Tensor | None:
    """The clients that are evaluated, the same in every round; None: all of them."""
    count = setting.config.evaluate.clients
    if count is None or count >= len(setting.federation):
        return None
    return sample(setting.federation, count, seed=setting.config.seed, round=NO_ROUND)


def _constant(setting: Setting, counts: Counts) -> dict[str, Any] | None:
    """The metrics of predicting the most frequent class of the training labels for everyone.

    The training labels of a real federation are not known, so there it is that of the evaluated
    ones. None for regression.
    """
    if counts.regression:
        return None
    data = setting.clean
    labels: Any = constant.label_counts(counts)
    if not setting.remote:
        labels = np.zeros(data.classes, np.int64)
        for clients in data.blocks():
            own = data.y[data.row_numbers(clients)]
            labels += torch.bincount(own, minlength=data.classes).numpy()
    top = constant.most_frequent(labels)
    found = constant.constant_metrics(counts, top)
    return {
        "class": data.labels[top] if top < len(data.labels) else f"class {top}",
        "metrics": {k: v if math.isfinite(v) else None for k, v in found.items()},
    }


def _validation_fronts(setting: Setting, now: Progress, last: bool) -> front.Fronts | None:
    """The fronts on validation examples, if clients choose on them where they predict."""
    algorithm = setting.algorithm
    if not isinstance(algorithm, LearnsFront) or tuple(getattr(algorithm, "preference", ())):
        return None
    if not bool((setting.federation.sizes("validation") > 0).any()):
        return None
    names = front.names_of(setting) or coordinates(
        algorithm.objectives, setting.federation.attributes
    )
    few = front.few_of(setting.config, last=last)
    return front.learnt(
        setting, now.server, now.engine, "validation", names, now.round, others=False, rays=few
    )


def chosen_preferences(validation: front.Fronts) -> NDArray[np.float32] | None:
    """Each client's preference [K, m] of least error on its validation examples.

    A client without such examples gets the mean of the others'. None if no client has any.
    """
    names = validation.names
    chosen = validation.best(names.index("error") if "error" in names else 0)
    if (chosen < 0).all():
        return None
    out = validation.preferences[chosen]
    out[chosen < 0] = out[chosen >= 0].mean(0)
    return out


def _ends(setting: Setting, found: front.Fronts, validation: front.Fronts) -> Metrics:
    """The points of the clients together, each at its own preference with the least of something.

    They are chosen on validation examples and measured on the evaluated ones.
    """
    out: Metrics = {}
    for i, least in enumerate(found.names):
        at = found.point(validation.best(i), setting.benign)
        for j, name in enumerate(found.names):
            value = math.nan if at is None else float(at[j])
            out[f"front.least.{least}.{name}"] = value if math.isfinite(value) else None
    return out


def _stated(setting: Setting, preferences: NDArray[np.float32] | None) -> str | None:
    """At which points of their fronts the clients predicted."""
    algorithm = setting.algorithm
    if not isinstance(algorithm, LearnsFront):
        return None
    fixed = tuple(getattr(algorithm, "preference", ()))
    if preferences is None:
        shares = [v / sum(fixed) for v in fixed] or [1 / len(algorithm.objectives)] * len(
            algorithm.objectives
        )
        which = ", ".join(
            f"{name} {share:.3g}" for name, share in zip(algorithm.objectives, shares, strict=True)
        )
        why = "as configured" if fixed else "no client has validation examples to choose on"
        return f"metrics are those of the preference ({which}) for every client, {why}."
    first = np.sort(preferences[:, 0])
    spread = f"{first[0]:.3g} to {first[-1]:.3g}" if first[0] < first[-1] else f"{first[0]:.3g}"
    return (
        "metrics are those of each client's own preference of least error on its validation "
        f"examples (share of {algorithm.objectives[0]}: {spread}, median {np.median(first):.3g})."
    )


def measures_values(setting: Setting) -> bool:
    """Whether a run measures what histograms of scores and sums of errors are needed for.

    A real federation does not: these tell more about single examples than counts of predictions.
    """
    wanted = setting.config.evaluate.scores != "never" and not setting.remote
    return wanted and has_errors(setting.task)


def _no_values(setting: Setting, clients: int) -> Values | None:
    """Values of no examples, if the run measures any."""
    data, task = setting.federation, setting.task
    if not measures_values(setting):
        return None
    likelihood = task.classes > 0
    return Values.zeros(clients, task.classes, data.attributes, likelihood=likelihood)


def measurable(setting: Setting) -> set[str]:
    """The names of the metrics that the last evaluation of a run will have, without its costs."""
    data = setting.federation
    none = Counts.zeros(1, data.classes, data.attributes)
    names = set(summarise(none, _no_values(setting, 1)))
    rule = surrogate.rule_of(setting)
    finds = isinstance(setting.algorithm, FindsClusters)
    if finds if rule == "found" else surrogate.clusters(setting) is not None:
        names.add("faa")
    if finds:
        names.add("clusters")
    if front.names_of(setting) is not None:
        names |= {"hv.local", "hv.global"}
    if setting.config.evaluate.bootstrap:
        names |= {f"{name}:{end}" for name in names for end in ("low", "high")}
    return names


def _measured(
    setting: Setting,
    counts: Counts,
    values: Values | None,
    ids: list[int],
    found: front.Fronts | None,
    now: Progress,
    last: bool,
) -> tuple[Metrics, Columns]:
    """A round's metrics and its table of clients."""
    config, federation, round = setting.config, setting.federation, now.round
    if not np.isfinite(counts.loss).all():
        raise TrainingError(
            f"round {round}: the loss on the {config.evaluate.split} examples is not finite; lower "
            f"local.lr (now {config.local.lr:g}) or scale the features, and run again."
        )
    bootstrap = config.evaluate.bootstrap if last and now.engine.leads else 0
    benign = setting.benign[ids]  # all clients, unless there is an attack
    of_benign = None if values is None else values.only(benign)
    metrics = summarise(counts.only(benign), of_benign, bootstrap=bootstrap, seed=config.seed)
    rows: Columns = {
        "round": [round] * len(ids),
        "client": list(ids),
        "name": [federation.name(k) for k in ids],
        "split": [config.evaluate.split] * len(ids),
    }
    measured = per_client(counts, values)
    for name in per_client(Counts.zeros(1, federation.classes, federation.attributes),
                           _no_values(setting, 1)):  # fmt: skip
        # columns that are measured at the end only are there before, so that they stay the same
        rows[name] = listed(measured[name]) if name in measured else [math.nan] * len(ids)
    if setting.attack is not None:
        rows["malicious"] = listed(~benign)
    if found is not None:
        metrics |= found.metrics()
        rows["hv"] = found.volumes.tolist()
    elif front.names_of(setting) is not None:
        rows["hv"] = [math.nan] * len(ids)  # a client did not answer; the columns stay the same
    clusters = found_clusters(setting, now)
    if clusters is not None:
        rows["cluster"] = clusters[ids].tolist()
        metrics["clusters"] = float(len(set(clusters.tolist())))
    return dict(metrics), rows


def _add_excess(
    setting: Setting,
    counts: Counts,
    ids: list[int],
    now: Progress,
    metrics: Metrics,
    rows: Columns,
    rays: Tensor | None,
    *,
    last: bool,
) -> risk.ExcessRisk | None:
    """Add FAA to the metrics and each client's excess to the rows; its errors are known at the end.

    Clusters that the algorithm finds are used at the end only.
    """
    groups = surrogate.clusters(setting, now.server if last else None)
    unknown: list[float] = [math.nan] * len(ids)  # the columns stay the same
    if groups is None:
        if "cluster" in rows and setting.config.excess.clusters == "found":
            rows["excess_loss"], rows["excess_error"] = unknown, unknown
        return None
    states = now.engine.all_states() if last else None
    if not now.engine.leads:  # the process that writes the results measures it
        return None
    found = surrogate.reference(setting, groups)
    if last:
        deployed = setting.algorithm.deployed(now.server)
        got = risk.measured(setting, found, deployed, states, ids, rays)
        metrics |= {"faa": got.faa, "faa:low": got.low, "faa:high": got.high}
        rows["excess_loss"], rows["excess_error"] = _nan(got.excess), _nan(got.error)
        return got
    floor: NDArray[np.float64] = np.array(
        [found.losses[k].mean() if len(found.losses[k]) else math.nan for k in ids]
    )
    above = excess(client_loss(counts), floor)
    benign = setting.benign[ids]
    metrics["faa"] = faa(above[benign], counts.sizes[benign])
    rows["excess_loss"], rows["excess_error"] = above.tolist(), unknown
    return None


def _nan(values: list[float | None]) -> list[float]:
    return [math.nan if v is None else v for v in values]


def final_fronts(setting: Setting, now: Progress, made: Evaluation) -> Columns:
    """The columns of the fronts at the end of a run.

    They are those measured on the evaluation split and, for an algorithm that learns a front, also
    those on validation examples, from which a preference is chosen.
    """
    if made.fronts is None:
        return {}
    both, chosen = [made.fronts], made.validation
    if not objectives(setting.algorithm) or made.fronts.split == "validation":
        return front.stored(both)
    if chosen is None and bool((setting.federation.sizes("validation") > 0).any()):
        chosen = front.learnt(
            setting,
            now.server,
            now.engine,
            "validation",
            made.fronts.names,
            now.round,
            others=False,
        )
    return front.stored([*both, *([] if chosen is None else [chosen])])
