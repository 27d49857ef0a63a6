"""The notes of a finished run: sentences that every output shows with the results."""

from __future__ import annotations

from collections import Counter
from typing import Any

from isonomy.core.capabilities import Remarks
from isonomy.core.work import Work
from isonomy.metrics.errors import has_errors
from isonomy.runs import middleware, postprocessing, private, surrogate, thresholds
from isonomy.runs.build import Setting
from isonomy.runs.progress import Progress, found_clusters
from isonomy.runs.server_data import server_data_note

_NAMED = 20  # clients of a cluster that are named


def notes(
    setting: Setting, now: Progress, lines: list[dict[str, Any]], excess: dict[str, Any]
) -> tuple[str, ...]:
    """The notes, given the lines of all rounds and the excess risk that was measured."""
    out = list(setting.federation.notes)
    out += private.note(setting, now.private)
    out += _sampled(setting)
    out += server_data_note(setting.config, setting.server_data)
    out += middleware.notes(setting, lines)
    if excess:
        out.append(excess["statement"])
    elif surrogate.rule_of(setting) == "found":
        out.append(f"No FAA: '{setting.config.algorithm.name}' finds no clusters of clients.")
    elif surrogate.rule_of(setting) == "true":
        out.append("No FAA: the true clusters of these clients are not known.")
    fitted = lines[-1].get("postprocess") if lines else None
    if fitted is not None:
        out.append(postprocessing.statement(fitted))
    used = [line["thresholds"] for line in lines if "thresholds" in line]
    if used:
        out.append(thresholds.statement(used[-1]))
    clusters = found_clusters(setting, now)
    if clusters is not None:
        out.append(_clusters(setting, clusters.tolist()))
    out += _recommended(setting)
    if isinstance(setting.algorithm, Remarks):
        out += filter(None, [setting.algorithm.remark(now.server)])
    out += _choices(lines)
    if now.round < private.allowed_rounds(setting):
        out.append(
            f"The method ended training after {now.round} of {setting.config.rounds} rounds."
        )
    out += _limits(setting)
    if now.lost:
        out.append(f"In {now.lost} rounds no client answered; they changed nothing.")
    out += [
        f"'{name}' was left out of {count} exchanges; rounds.jsonl gives the reasons."
        for name, count in sorted(now.faults.items())
    ]
    return tuple(out)


def _sampled(setting: Setting) -> list[str]:
    """That metrics are estimates from some of the clients, if they are."""
    count, clients = setting.config.evaluate.clients, len(setting.federation)
    if count is None or count >= clients:
        return []
    return [
        f"Metrics are those of {count:,} of {clients:,} clients, drawn uniformly by the seed and "
        "the same in every round (evaluate.clients); intervals are over these clients, and the "
        "worst of them need not be the worst of all."
    ]


def _recommended(setting: Setting) -> list[str]:
    """The local work that is not the package's default because the method recommends it."""
    used, usual = setting.config.local, Work()
    keys = [
        f"{key} = {value!r}"
        for key, value in setting.algorithm.recommended_work().items()
        if getattr(used, key) == value != getattr(usual, key)
    ]
    if not keys:
        return []
    return [
        f"Local work as '{setting.config.algorithm.name}' recommends it: {', '.join(keys)}; keys "
        "that the config sets in [local] come first."
    ]


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


def _clusters(setting: Setting, clusters: list[int]) -> str:
    """How many clusters a method found, and which clients are in them."""
    members: dict[int, list[str]] = {}
    for k, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(setting.federation.name(k))
    largest = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    sizes = ", ".join(str(len(names)) for _, names in largest)
    text = f"Clusters of clients that the method found: {len(members)}, of size {sizes}."
    if len(members) == 1:
        return text
    each = []
    for cluster, names in largest[:_NAMED]:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        each.append(f"{cluster}: {', '.join(names[:_NAMED])}{more}")
    return f"{text} Members: {'; '.join(each)}."


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
    if setting.remote and setting.config.evaluate.scores != "never" and has_errors(setting.task):
        which = "AUC, average precision, calibration and Brier score"
        out.append(
            f"{which if setting.task.classes else 'RMSE, MAE and R2'} are not measured in a real "
            "federation: the statistics that they need would tell more about single rows."
        )
    return out
