"""Evaluation of a round: metrics, the table of clients, and fronts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.core.capabilities import objectives
from isonomy.core.cohort import NoReplies
from isonomy.errors import TrainingError
from isonomy.metrics import Counts, client_loss, excess, faa, per_client, summarise
from isonomy.runs import front, surrogate
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_answering
from isonomy.runs.progress import Progress, found_clusters

Metrics = dict[str, float | None]
Columns = dict[str, list[Any]]


def evaluate(
    setting: Setting, now: Progress, *, last: bool
) -> tuple[Metrics | None, Columns, front.Fronts | None]:
    """The metrics, the table of clients and the fronts, of the clients that answer.

    The metrics are None, and the table is empty, if no client answers. Raises TrainingError if
    the loss is not finite.
    """
    config = setting.config
    try:
        counts, ids = count_answering(
            setting.algorithm, now.server, now.engine, config.evaluate.split, now.round
        )
    except NoReplies:
        return None, {}, None
    # clusters that the algorithm finds are used for excess risk at the end only
    losses = surrogate.surrogate_losses(setting, now.server if last else None)
    if losses is not None:
        losses = losses[ids]
    found = front.measured(setting, now.server, now.engine, counts, ids, now.round, last=last)
    metrics, rows = _measured(setting, counts, ids, losses, found, now, last)
    return metrics, rows, found


def _measured(
    setting: Setting,
    counts: Counts,
    ids: list[int],
    losses: NDArray[np.float64] | None,
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
    if losses is not None:
        above = excess(client_loss(counts), losses)
        metrics["faa"] = faa(above[benign], counts.sizes[benign])
        rows["excess_loss"] = above.tolist()
    elif clusters is not None and config.excess.clusters == "found":
        rows["excess_loss"] = [math.nan] * len(ids)  # known at the end; the columns stay the same
    return {k: v if math.isfinite(v) else None for k, v in metrics.items()}, rows


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
            setting, now.server, now.engine, "validation", found.names, now.round, others=False
        )
        both += [] if chosen is None else [chosen]
    return front.stored(both)
