"""Remarks on methods; footnotes on what they were measured against, and on found clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isonomy.metrics.client import Better
from isonomy.report import runs
from isonomy.report.phrases import listed
from isonomy.report.runs import Method
from isonomy.report.tables.best import below_constant, dominated, of_use
from isonomy.runs.record import Record

_NAMED = 20  # clients of a cluster that are named


def of_methods(
    found: Sequence[Method],
    constants: Mapping[str, Mapping[str, float]],
    objectives: Mapping[str, Better],
) -> list[str]:
    """A short remark on each method: not finished, of no use, dominated; empty if there is none."""
    usable = [of_use(method, constants.get(method.data, {})) for method in found]
    worse = dominated(objectives, found, usable)
    out = []
    for i, method in enumerate(found):
        texts = _unfinished(method)
        classes = dict.fromkeys(filter(None, (runs.only_class(run) for run in method.runs)))
        if classes:
            texts.append(f"predicts {' or '.join(map(repr, classes))} for everyone")
        elif below_constant(method, constants.get(method.data, {})):
            texts.append(f"less accurate than the {runs.CONSTANT}")
        if i in worse:
            texts.append(f"worse than {found[worse[i]].label} in every column")
        out.append("; ".join(texts))
    return out


def _unfinished(method: Method) -> list[str]:
    """What became of the runs that did not finish."""
    seeds: dict[str, list[int]] = {}
    for run in (*method.runs, *method.unfinished):
        if text := runs.state(run):
            seeds.setdefault(text, []).append(run.seed)
    of = len(method.runs) + len(method.unfinished)
    return [
        text if len(which) == of else f"seed {listed(which)}: {text}"
        for text, which in seeds.items()
    ]


def one_class(found: Sequence[Method]) -> list[str]:
    """Which models predict one class for everyone."""
    notes = []
    for method in found:
        which = [(run.seed, at) for run in method.runs if (at := runs.only_class(run))]
        for at in dict.fromkeys(name for _, name in which):
            seeds = listed([seed for seed, name in which if name == at])
            notes.append(
                f"{method.title}, seed {seeds}: the model predicts '{at}' for every example, so "
                "its gaps between groups are 0 whatever the data."
            )
    return notes


def surrogates(records: list[Record]) -> list[str]:
    """What FAA was measured against: the schedule, the models chosen for each seed, and where a
    method's own model took their place.
    """
    found = runs.methods(records)
    measured = [(method, run) for method in found for run in method.runs if run.excess]
    notes = _by_method((m, run.excess["schedule"]) for m, run in measured)
    notes += _by_method(
        (m, f"Surrogate, seed {run.seed}: {run.excess['chosen']}") for m, run in measured
    )
    if any(len(method.runs) == 1 for method, _ in measured):
        notes.append(
            "The interval of FAA is over examples, not over clients: at least 95 %, for this model "
            "and this surrogate."
        )
    for method, run in measured:
        pairs = zip(run.excess["clients"], run.excess["better"], strict=True)
        names = [name for name, is_better in pairs if is_better]
        if names:
            notes.append(
                f"{method.title}, seed {run.seed}: its own model is better than the surrogate "
                f"beyond chance at {listed(names)}, so there it is the reference and the excess 0."
            )
    return notes


def clusters(found: Sequence[Method]) -> list[str]:
    """Which clients are in which cluster, for every method that finds clusters."""
    notes = []
    for method in found:
        seeds: dict[str, list[int]] = {}
        for run in method.runs:
            text = _members(run)
            if text:
                seeds.setdefault(text, []).append(run.seed)
        for text, of in seeds.items():
            when = "" if len(seeds) == 1 else f", seed {listed(of)}"
            notes.append(f"{method.title}{when}: clusters found: {text}.")
    return notes


def _members(run: Record) -> str:
    """The members of each cluster at the last evaluation, the largest first."""
    table = runs.last_clients(run)
    members: dict[int, list[str]] = {}
    for i, cluster in enumerate(table.get("cluster", ())):
        members.setdefault(int(cluster), []).append(runs.client_name(table, i))
    largest = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    each = [f"{cluster}: {listed(names, _NAMED)}" for cluster, names in largest]
    return "; ".join(each[:_NAMED]) + (" ..." if len(each) > _NAMED else "")


def _by_method(texts: Iterable[tuple[Method, str]]) -> list[str]:
    """Each text once; with the methods it is about, if there are different ones of its kind."""
    who: dict[str, list[str]] = {}
    kinds: dict[str, set[str]] = {}
    for method, text in texts:
        titles = who.setdefault(text, [])
        if method.title not in titles:
            titles.append(method.title)
        kinds.setdefault(text.partition(": ")[0], set()).add(text)
    return [
        text if len(kinds[text.partition(": ")[0]]) == 1 else f"{text} ({listed(titles)})"
        for text, titles in who.items()
    ]
