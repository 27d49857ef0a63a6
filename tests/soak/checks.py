"""What a soak test has to show: every planted fault is named, and no fault that was not planted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from soak.director import Struck
from soak.plan import FORBIDDEN, ORGANISER, POISON, Plan

Lines = Sequence[Mapping[str, Any]]
AWAY = ("did not reply", "has left", "is not connected", "could not answer")
SOON = 3  # rounds within which a fault must be noticed


def reasons(line: Mapping[str, Any], name: str) -> list[str]:
    """Why the replies of a client were not used in a round."""
    return [fault["why"] for fault in line.get("faults", ()) if fault["client"] == name]


def away(lines: Lines, struck: Struck) -> range:
    """The rounds, from 1, in which one who was struck was left out; empty if nobody noticed."""
    for line in lines[struck.round : struck.round + SOON]:
        if any(word in why for why in reasons(line, struck.name) for word in AWAY):
            first = last = int(line["round"])
            while last < len(lines) and reasons(lines[last], struck.name):
                last += 1
            return range(first, last + 1)
    return range(0)


def wrong(plan: Plan, struck: Sequence[Struck], lines: Lines, logs: Mapping[str, str]) -> list[str]:
    """What is missing or unexpected; empty if all is as it should be."""
    out = [*_rounds(plan, lines), *_replies(plan, lines)]
    explained: dict[str, set[int]] = {plan.attacker: {r + 1 for r in plan.replies}}
    for one in struck:
        what = f"{one.event.kind} of '{one.name}' after round {one.round}"
        if one.name == ORGANISER:
            out += [f"{what}: {why}" for why in _restart(plan, one, logs)]
            continue
        found = away(lines, one)
        if not found:
            out.append(f"{what}: rounds {one.round + 1} to {one.round + SOON} name no fault of it")
        for r in found:
            explained.setdefault(one.name, set()).add(r)
            text = f"round {r}: '{one.name}' is left out"
            if text not in logs[ORGANISER]:
                out.append(f'{what}: the organiser\'s log has no line "{text}"')
        if found and found[-1] >= len(lines):
            out.append(f"{what}: it did not come back")
    for event in sorted(set(plan.events) - {one.event for one in struck}, key=lambda e: e.round):
        out.append(f"{event.kind} after round {event.round}: it was not carried out")
    for line in lines:
        for fault in line.get("faults", ()):
            if line["round"] not in explained.get(fault["client"], ()):
                out.append(
                    f"round {line['round']}: '{fault['client']}' was left out ({fault['why']}), "
                    "but nothing was done to it"
                )
    return out


def _rounds(plan: Plan, lines: Lines) -> Iterator[str]:
    if [line["round"] for line in lines] != list(range(1, plan.rounds + 1)):
        yield f"rounds.jsonl has {len(lines)} rounds, not 1 to {plan.rounds} once each"


def _replies(plan: Plan, lines: Lines) -> Iterator[str]:
    """Every forbidden reply is refused with its sender and reason; other replies are used."""
    for line in lines:
        way = plan.replies.get(line["round"] - 1, "")
        found = reasons(line, plan.attacker)
        if way in FORBIDDEN and not any(way in why for why in found):
            yield f"round {line['round']}: the reply of '{plan.attacker}' ({way}) was not refused"
        if way in (POISON, "") and found:
            kind = way or "honest reply"
            yield f"round {line['round']}: the {kind} of '{plan.attacker}' was refused: {found[0]}"


def _restart(plan: Plan, one: Struck, logs: Mapping[str, str]) -> Iterator[str]:
    """The organiser's log says where it continued, and so do those of all participants."""
    near = [f"continues after round {r} of {plan.rounds}" for r in range(one.round, one.round + 3)]
    if not any(text in logs[ORGANISER] for text in near):
        yield f'the organiser\'s log does not say "{near[0]}"'
    for name in plan.names:
        after = logs[name][one.printed[name] :]
        if "the server has started again" not in after:
            yield f"the log of '{name}' does not say that the server has started again"
