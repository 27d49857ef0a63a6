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
    out += _choices(lines)
    if now.round < setting.config.rounds:
        out.append(
            f"The method ended training after {now.round} of {setting.config.rounds} rounds."
        )
    if now.lost:
        out.append(f"In {now.lost} rounds no client answered; they changed nothing.")
    out += [
        f"'{name}' was left out of {count} exchanges; rounds.jsonl gives the reasons."
        for name, count in sorted(now.faults.items())
    ]
    return tuple(out)


def _choices(lines: list[dict[str, Any]]) -> list[str]:
    """How often the method recorded each word, if it recorded any."""
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        for name, value in line.get("recorded", {}).items():
            if isinstance(value, str):
                counts.setdefault(name, Counter())[value] += 1
    return [
        f"Rounds by {name}: " + ", ".join(f"{word} {n}" for word, n in sorted(count.items())) + "."
        for name, count in counts.items()
    ]
