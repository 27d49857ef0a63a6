"""Evaluation of a round: metrics, the table of clients, and fronts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isonomy.core.capabilities import FindsClusters, objectives
from isonomy.core.cohort import NoReplies
from isonomy.errors import TrainingError
from isonomy.metrics import Counts, client_loss, excess, faa, per_client, summarise
from isonomy.runs import excess as risk
from isonomy.runs import front, surrogate
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_answering
from isonomy.runs.progress import Progress, found_clusters

Metrics = dict[str, float | None]
Columns = dict[str, list[Any]]


class Evaluation(NamedTuple):
    """What an evaluation measured; metrics are None, and rows empty, if no client answered."""

    metrics: Metrics | None
    rows: Columns  # the table of clients
    fronts: front.Fronts | None
    excess: risk.ExcessRisk | None  # at the end only


def evaluate(setting: Setting, now: Progress, *, last: bool) -> Evaluation:
    """The metrics, the table of clients and the fronts, of the clients that answer.

    Raises TrainingError if the loss is not finite.
    """
    config = setting.config
    try:
        counts, ids = count_answering(
            setting.algorithm, now.server, now.engine, config.evaluate.split
        )
    except NoReplies:
        return Evaluation(None, {}, None, None)
    found = front.measured(setting, now.server, now.engine, counts, ids, last=last)
    metrics, rows = _measured(setting, counts, ids, found, now, last)
    excess = _add_excess(setting, counts, ids, now, metrics, rows, last=last)
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in metrics.items()}
    return Evaluation(finite, rows, found, excess)


def measurable(setting: Setting) -> set[str]:
    """The names of the metrics that the last evaluation of a run will have, without its costs."""
    data = setting.federation
    names = set(summarise(Counts.zeros(len(data), data.classes, data.attributes), bootstrap=0))
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
    bootstrap = config.evaluate.bootstrap if last else 0
    benign = setting.benign[ids]  # all clients, unless there is an attack
    metrics = summarise(counts.only(benign), bootstrap=bootstrap, seed=config.seed)
    rows: Columns = {
        "round": [round] * len(ids),
        "client": list(ids),
        "name": [federation.name(k) for k in ids],
        "split": [config.evaluate.split] * len(ids),
    }
    rows |= {k: v.tolist() for k, v in per_client(counts).items()}
    if setting.attack is not None:
        rows["malicious"] = (~benign).tolist()
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
    found = surrogate.reference(setting, groups)
    if last:
        deployed = setting.algorithm.deployed(now.server)
        got = risk.measured(setting, found, deployed, now.engine.states.stacked, ids)
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


def final_fronts(setting: Setting, now: Progress, found: front.Fronts | None) -> Columns:
    """The columns of the fronts at the end of a run.

    They are those measured on the evaluation split and, for an algorithm that learns a front, also
    those on validation examples, from which a preference is chosen.
    """
    if found is None:
        return {}
    both = [found]
    own = objectives(setting.algorithm) and found.split != "validation"
    if own and bool((setting.federation.sizes("validation") > 0).any()):
        chosen = front.learnt(
            setting, now.server, now.engine, "validation", found.names, others=False
        )
        both += [] if chosen is None else [chosen]
    return front.stored(both)
