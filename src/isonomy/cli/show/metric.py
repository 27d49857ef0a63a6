"""The page of a metric: its meaning, and which direction is better."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_text
from isonomy.cli.shell import console

_COSTS = ("seconds", "bytes", "bytes.down", "bytes.up")
_WITHOUT_A_DOT = ("accuracy", "loss", "faa", "excess", "hypervolume", "hv", *_COSTS)


def show(name: str) -> bool:
    """Print the page of a metric; raises ConfigError if a name with a dot is unknown."""
    if "." not in name and name not in _WITHOUT_A_DOT:
        return False
    from isonomy.metrics import parse

    metric = parse(name)
    out = console()
    print_heading(out, name, "metric" + (f"; {metric.better} is better" if metric.better else ""))
    print_text(out, metric.meaning())
    return True
