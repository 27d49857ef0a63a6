"""The page of a metric: its meaning, and which direction is better."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_text
from isonomy.cli.shell import console


def show(name: str) -> bool:
    """Print the page of a metric; raises ConfigError if a name with a dot is unknown."""
    from isonomy.metrics import parse
    from isonomy.metrics.registry import COSTS, POOLED, SINGLE

    if "." not in name and name not in {*POOLED, *SINGLE, *COSTS}:
        return False
    metric = parse(name)
    out = console()
    print_heading(out, name, "metric" + (f"; {metric.better} is better" if metric.better else ""))
    print_text(out, metric.meaning())
    return True
