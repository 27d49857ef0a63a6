"""Post-processing: rules of decisions that are fitted after training, for any model.

A method (`METHODS`) fits a rule (`Rule`) from statistics that clients count: how many examples of
each group and label have which score or decision. A new method is one file with a `Method`, and an
entry in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isonomy.core.options import build
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.scores import Scores
from isonomy.postprocess.fair_lp import FairLP
from isonomy.postprocess.fedfact import FedFACT
from isonomy.postprocess.logofair import LoGoFair
from isonomy.postprocess.method import Method
from isonomy.postprocess.rule import Rule, read_rule
from isonomy.postprocess.thresholds import GroupThresholds

__all__ = ["METHODS", "Method", "Rule", "fit", "make", "read_rule"]

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (LoGoFair, FedFACT, FairLP, GroupThresholds)
}
"""Every method by its name."""


def make(name: str, options: Mapping[str, Any]) -> Method:
    """A method with the given options, checked; raises ConfigError."""
    if name not in METHODS:
        raise ConfigError(f"postprocess.name: {unknown('post-processing method', name, METHODS)}")
    return build("postprocess", name, METHODS[name], options)


def fit(name: str, scores: Scores, *, seed: int = 0, **options: Any) -> Rule:
    """The rule of a method for two classes, from the clients' histograms of scores.

    `options` are those of the method, such as attribute, notion, budget and local_budget. What the
    rule decides on other histograms, in expectation, is `rule.counts(scores)`, and its metrics
    follow from `rule.tally(scores)`.
    """
    return make(name, options).fit(scores, seed)
