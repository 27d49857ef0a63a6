"""Client fairness, group fairness, excess-risk fairness and fronts, from mergeable counts."""

from isonomy.metrics.client import (
    best,
    client_accuracy,
    client_loss,
    entropy,
    gini,
    interval,
    jain,
    variation,
    worst,
)
from isonomy.metrics.counts import Counts, Tally, count
from isonomy.metrics.excess import Paired, excess, faa, faa_interval, paired
from isonomy.metrics.front import hypervolume, nondominated
from isonomy.metrics.group import (
    demographic_parity,
    demographic_parity_overall,
    equal_opportunity,
    equal_opportunity_overall,
    equalised_odds,
    group_accuracy,
    group_loss,
    max_loss,
    max_loss_given_label,
    min_accuracy,
)
from isonomy.metrics.names import Metric, better, describe, parse
from isonomy.metrics.summary import intervals, per_client, spread, summarise

__all__ = [
    "Counts",
    "Metric",
    "Paired",
    "Tally",
    "best",
    "better",
    "client_accuracy",
    "client_loss",
    "count",
    "demographic_parity",
    "demographic_parity_overall",
    "describe",
    "entropy",
    "equal_opportunity",
    "equal_opportunity_overall",
    "equalised_odds",
    "excess",
    "faa",
    "faa_interval",
    "gini",
    "group_accuracy",
    "group_loss",
    "hypervolume",
    "interval",
    "intervals",
    "jain",
    "max_loss",
    "max_loss_given_label",
    "min_accuracy",
    "nondominated",
    "paired",
    "parse",
    "per_client",
    "spread",
    "summarise",
    "variation",
    "worst",
]
