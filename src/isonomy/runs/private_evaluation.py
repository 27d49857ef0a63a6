"""Evaluation with differential privacy: metrics of noisy counts.

The clients' counts of predictions get noise and are charged to the ledger
(`isonomy.privacy.evaluation`). Metrics are computed from them as from exact counts; they have no
intervals. Losses and metrics of scores are not measured, and at level `client` nothing of single
clients.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isonomy.core.cohort import NoReplies
from isonomy.metrics import Counts, constant, per_client, summarise
from isonomy.privacy.evaluation import Counting, Noised
from isonomy.runs import thresholds
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_answering
from isonomy.runs.evaluate import Evaluation, Metrics
from isonomy.runs.private import counting_of
from isonomy.runs.progress import Progress


def due(setting: Setting, *, last: bool) -> bool:
    """Whether a private run measures now."""
    when = setting.config.privacy.evaluate
    return when == "every" or (when == "last" and last)


def entry_of(counting: Counting, phase: str, round: int | str) -> dict[str, Any]:
    """The ledger's line of a release of noisy counts."""
    part = {
        "kind": "group statistic",
        "sensitivity": counting.sensitivity,
        "noise": counting.deviation,
        "of": "the sum" if counting.level == "client" else "each client",
    }
    return {
        "round": round,
        "phase": phase,
        "verb": "sum",
        "multiplier": counting.multiplier,
        "parts": {"counts": part},
    }


def evaluate_private(setting: Setting, now: Progress, *, last: bool) -> Evaluation:
    """Measure the models with noise, and charge it."""
    config = setting.config
    assert now.private is not None
    ledger, split = now.private.ledger, config.evaluate.split
    counting = counting_of(setting, now.private.terms.evaluation)
    number = len(ledger.entries)  # so that every release has noise of its own
    entry = entry_of(counting, f"evaluation:{split}", now.round)
    ledger.charge_everyone(split, counting.multiplier, entry)
    used = thresholds.of_round(setting, now)
    try:
        counts, ids = count_answering(
            setting.algorithm,
            now.server,
            now.engine,
            split,
            now.round,
            None,
            used if now.rule is None else now.rule,
        )
    except NoReplies:
        return Evaluation()
    noised = counting.noised(counts.counts, now.private.key, "evaluation", number)
    pooled = whole(noised, setting)
    metrics: Metrics = {k: v for k, v in summarise(pooled).items() if not _of_clients(k)}
    rows: dict[str, list[Any]] = {}
    if counting.level == "example":
        each = _whole_numbers(noised.counts, setting)
        metrics |= {k: v for k, v in summarise(each).items() if _of_clients(k)}
        rows = _table(setting, now, each, ids)
    known = {
        k: v if v is not None and math.isfinite(v) else None
        for k, v in metrics.items()
        if "loss" not in k
    }
    return Evaluation(
        metrics=known,
        clients=rows,
        constant=_constant(setting, pooled) if last else None,
        thresholds=None if used is None else thresholds.recorded(setting, used),
    )


def _of_clients(name: str) -> bool:
    return name.startswith("client.")


def whole(noised: Noised, setting: Setting) -> Counts:
    """All clients' noisy counts together, as one client; no count is negative."""
    return _whole_numbers(noised.counts.sum(0, keepdims=True), setting)


def _whole_numbers(counts: Any, setting: Setting) -> Counts:
    cells = np.rint(np.maximum(counts, 0.0)).astype(np.int64)
    return Counts(cells, np.zeros(cells.shape[:3]), setting.federation.attributes)


def _table(setting: Setting, now: Progress, counts: Counts, ids: list[int]) -> dict[str, list[Any]]:
    """The table of clients, from each client's noisy counts."""
    measured = per_client(counts, None)
    rows: dict[str, list[Any]] = {
        "round": [now.round] * len(ids),
        "client": list(ids),
        "name": [setting.federation.name(k) for k in ids],
        "split": [setting.config.evaluate.split] * len(ids),
    }
    for name, values in measured.items():
        rows[name] = [math.nan] * len(ids) if "loss" in name else values.tolist()
    return rows


def _constant(setting: Setting, counts: Counts) -> dict[str, Any]:
    """The metrics of predicting the most frequent of the evaluated labels, by noisy counts."""
    top = constant.most_frequent(constant.label_counts(counts))
    found = constant.constant_metrics(counts, top)
    labels = setting.clean.labels
    return {
        "class": labels[top] if top < len(labels) else f"class {top}",
        "metrics": {k: v for k, v in found.items() if math.isfinite(v) and not _of_clients(k)},
    }
