"""The page of an algorithm: paper, options, phases, and what the server sees of each client."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from isonomy.cli.printing import print_columns, print_heading, print_line, print_text
from isonomy.cli.shell import console, first_sentence
from isonomy.cli.show.options import example_of, print_options, print_search_space

if TYPE_CHECKING:
    from isonomy.core.algorithm import Algorithm
    from isonomy.core.phase import Declaration

_SEEN = {
    "gather": "every client's",
    "mean": "only the weighted mean",
    "sum": "only the sum",
    "weigh": "only the weighted mean",
}
EVALUATION = (
    "Each evaluation also reveals, of every client, how many rows of each group and label are "
    "predicted as which class, and sums of losses; in a real federation without groups and labels "
    "of fewer than privacy.cell rows, and rounded so that one row does not show."
)
_ADAPT = "adapt"  # see isonomy.core.capabilities.Adapts


def show(name: str) -> bool:
    """Print the page of an algorithm, given by name or as 'package.module:Class'."""
    from isonomy import algorithms
    from isonomy.core.importing import trust
    from isonomy.core.options import options_of, search_spaces
    from isonomy.core.phase import declared
    from isonomy.core.work import Work

    if ":" not in name and name not in algorithms.registry():
        return False
    if ":" in name:
        trust(name)  # the user has typed it
    kind = algorithms.find(name)
    phases = declared(kind)
    options = options_of(kind)
    out = console()
    title = f"{getattr(kind, 'name', kind.__name__)}: {first_sentence(kind.__doc__)}"
    family, paper = getattr(kind, "family", "none"), getattr(kind, "paper", "no paper")
    print_heading(out, title, f"algorithm, family {family}; {paper}")
    print_text(out, _description(kind))
    print_options(out, "Hyper-parameters", options)
    spaces = search_spaces(algorithm=kind, local=Work)
    print_search_space(out, {key: space.text for key, space in spaces.items()})
    print_line(out, _recommended(kind))
    heads = ("phase", "what a client does", "reply", "kind", "server sees")
    print_columns(out, "Phases", heads, [row for one in phases.values() for row in rows(one)])
    if hasattr(kind, "reveals"):
        print_line(out, f"Revealed to the server: {kind.reveals}.")
    print_line(out, EVALUATION)
    print_line(out, _under_a_defence(kind))
    print_line(out, _secure(kind))
    print_line(out, f'In a config: algorithm = {{ name = "{name}"{example_of(options)} }}')
    return True


def rows(phase: Declaration) -> Iterator[tuple[str, str, str, str, str]]:
    """One row per part of the reply: phase, what it does, part, kind, what the server sees."""
    if not phase.parts:
        who = "Only for clients that were not in training: " if phase.name == _ADAPT else ""
        yield phase.name, who + phase.does, "nothing", "", "nothing"
    first, does = phase.name, phase.does
    for name, part in phase.parts.items():
        yield first, does, name, part.kind, seen(phase, name)
        first = does = ""


def seen(phase: Declaration, part: str) -> str:
    """What the server sees of a part of the reply, under each of the phase's verbs."""
    ways = []
    for verb in phase.verbs:
        individual = verb == "weigh" and part in phase.seen
        ways.append(_SEEN["gather"] if individual else _SEEN[verb])
    return " or ".join(dict.fromkeys(ways))


def _description(kind: type[Algorithm]) -> str:
    """The docstring of the algorithm's file: the paper, the update rule, departures from it."""
    file = inspect.getdoc(sys.modules[kind.__module__])
    return file or inspect.getdoc(kind) or ""


def _recommended(kind: type[Algorithm]) -> str:
    """The local work that the method recommends with its default options."""
    try:
        wanted = kind().recommended_work()
    except (TypeError, ValueError):  # an option has no default
        return ""
    if not wanted:
        return "Local work: the defaults of [local] suit it."
    keys = ", ".join(f"local.{key} = {value!r}" for key, value in wanted.items())
    return f"Local work: {keys}, which is used for what the config's [local] does not set."


def _secure(kind: type[Algorithm]) -> str:
    """Whether secure aggregation can hide single replies, with the default options."""
    from isonomy.privacy.secure.check import of_every_client, seen

    try:
        phase = seen(kind())
    except (TypeError, ValueError):  # an option has no default
        return ""
    if phase is None:
        return (
            "With secure = true: possible; the server sees only sums, and no client's reply in "
            "training."
        )
    return f"With secure = true: refused, because {of_every_client(kind.name, phase)}."


def _under_a_defence(kind: type[Algorithm]) -> str:
    """What the server sees if a defence replaces the mean."""
    from isonomy.core.phase import declared
    from isonomy.robust.defence import refusal

    if refusal(kind, "any") is not None:
        return "Defences: none can be used, because there is no plain mean to replace."
    averaged = [phase.name for phase in declared(kind).values() if "mean" in phase.verbs]
    return f"With a defence, the server sees every client's reply of: {', '.join(averaged)}."
