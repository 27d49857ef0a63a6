"""The notes of a finished run: sentences that every output shows with the results."""

from __future__ import annotations

from collections import Counter
from typing import Any

from isonomy.runs import middleware, surrogate
from isonomy.runs.build import Setting
from isonomy.runs.progress import Progress, found_clusters


def notes(setting: Setting, now: Progress, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    """The notes, given the lines of all rounds."""
    out = list(setting.federation.notes)
    out += middleware.notes(setting, lines)
    stated = surrogate.statement(setting, now.server)
    if stated:
        out.append(stated)
    clusters = found_clusters(setting, now)
    if clusters is not None:
        sizes = sorted(Counter(clusters.tolist()).values(), reverse=True)
        which = ", ".join(str(size) for size in sizes)
        out.append(f"Clusters of clients that the method found: {len(sizes)}, of size {which}.")
    out += _limits(setting)
    if now.lost:
        out.append(f"In {now.lost} rounds no client answered; they changed nothing.")
    out += [
        f"'{name}' was left out of {count} exchanges; rounds.jsonl gives the reasons."
        for name, count in sorted(now.faults.items())
    ]
    return tuple(out)


def _limits(setting: Setting) -> list[str]:
    """What participants of a real federation did not tell, which the metrics therefore miss."""
    limits, out = setting.config.privacy, []
    if setting.remote and limits.cell > 1:
        out.append(
            f"Labels of fewer than {limits.cell} rows of a client, and attributes with such "
            "groups, were not counted: metrics cover the others."
        )
    if setting.remote and limits.rounding:
        out.append(
            "Clients rounded models, losses and counts to what one row adds to them; metrics are "
            "accurate to about one row in every cell."
        )
    return out
