"""The thresholds of the decisions that a run counts, if its config names any.

A number is used as it is. A criterion is fitted at every evaluation, on the pooled histograms of
the clients' scores on their validation examples.
"""

from __future__ import annotations

from typing import Any

from isonomy.metrics.thresholds import Thresholds, fit
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import scores_answering
from isonomy.runs.progress import Progress


def of_round(setting: Setting, now: Progress) -> Thresholds | None:
    """The thresholds of an evaluation; None: the decisions of the task.

    They are fitted on the examples of benign clients.
    """
    evaluate = setting.config.evaluate
    if evaluate.threshold is None:
        return None
    if not isinstance(evaluate.threshold, str):
        return Thresholds(evaluate.threshold)
    scores, ids = scores_answering(
        setting.algorithm, now.server, now.engine, "validation", now.round
    )
    return fit(scores.only(setting.benign[ids]), evaluate.threshold, evaluate.threshold_by)


def recorded(setting: Setting, found: Thresholds) -> dict[str, Any]:
    """The thresholds as a round's line has them."""
    evaluate = setting.config.evaluate
    out: dict[str, Any] = {"rule": evaluate.threshold, "everyone": found.everyone}
    if evaluate.threshold_by is not None and found.column is not None:
        levels = setting.federation.attributes[found.column].levels
        out["by"] = evaluate.threshold_by
        out["groups"] = dict(zip(levels, found.groups, strict=True))
    return out


def statement(found: dict[str, Any]) -> str:
    """The thresholds of the last evaluation in one sentence, for the run's notes."""
    rule, groups = found["rule"], found.get("groups", {})
    each = [f"{found['by']} = {level}: {_text(at)}" for level, at in groups.items()]
    where = ", ".join(each) or _text(found["everyone"])
    how = ""
    if isinstance(rule, str):
        what = {"balanced": "balanced accuracy", "f1": "F1", "accuracy": "accuracy"}[rule]
        how = f", fitted for the best {what} on all clients' validation examples together"
    return (
        f"Decisions are counted with another threshold than .5 of the probability of class 1 "
        f"({where}{how}); accuracies and gaps are those of these decisions."
    )


def _text(threshold: float) -> str:
    return f"{max(threshold, 0.0):.4g}"
